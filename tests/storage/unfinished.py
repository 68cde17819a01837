"""Multipart uploads to S3 that are left unfinished."""

from __future__ import annotations

from pbg_tasks.storage.s3_client import connect


def unfinished(s3_bucket, key):
    """Begin an upload, leave it unfinished and return its id."""
    bucket, _, prefix = s3_bucket.removeprefix("s3://").partition("/")
    client, place = connect(), {"Bucket": bucket, "Key": f"{prefix}/{key}"}
    begun = client.create_multipart_upload(**place)["UploadId"]
    client.upload_part(**place, UploadId=begun, PartNumber=1, Body=b"x")
    return begun


def uploads(s3_bucket):
    bucket, _, prefix = s3_bucket.removeprefix("s3://").partition("/")
    listed = connect().list_multipart_uploads(Bucket=bucket, Prefix=prefix).get("Uploads", [])
    return {upload["UploadId"] for upload in listed}
