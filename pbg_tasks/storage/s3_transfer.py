"""Transfer of large objects in parts.

These are conditional multipart uploads and copies, and ranged downloads of one version.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, TypedDict

from botocore.exceptions import BotoCoreError, ClientError

from pbg_tasks.errors import StorageError
from pbg_tasks.progress import say
from pbg_tasks.storage.files import disk_errors, write_all
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.storage.s3_answers import LostAnswerError, found_object, tag_of
from pbg_tasks.storage.s3_client import TRANSPORT_ERRORS, error_code, http_status
from pbg_tasks.storage.s3_patience import ATTEMPTS, is_busy, pause, persistently

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from botocore.response import StreamingBody
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import (
        CompletedPartTypeDef,
        CreateMultipartUploadOutputTypeDef,
        GetObjectOutputTypeDef,
        MultipartUploadTypeDef,
    )

    from pbg_tasks.storage.base import ObjectInfo

_MIB = 1 << 20
_MOST_PARTS = 10_000  # S3's limit


class Condition(TypedDict, total=False):
    """Condition that the server checks in the instant of a write.

    It is empty for an unconditional write.
    """

    IfNoneMatch: str
    IfMatch: str


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes from which on one request becomes many.

    Attributes:
        part: bytes of a part of an upload or download; S3 wants at least 5 MiB for an upload's.
        copy: bytes up to which a copy is one request; S3 allows 5 GB, but sends nothing while it works.
        copy_part: bytes of a copy's part.
        threads: parts under way at once; an upload holds as many in memory.
    """

    part: int = 16 * _MIB
    copy: int = 1024 * _MIB
    copy_part: int = 256 * _MIB
    threads: int = 4


@dataclass(frozen=True, slots=True)
class Completed:
    """Object that was uploaded in parts.

    Attributes:
        tag: of the object.
        seconds: that the server took to assemble it from its parts.
    """

    tag: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Place:
    """One object of one bucket."""

    client: S3Client
    bucket: str
    key: str


def upload_parts(
    place: Place, source: Path, size: int, metadata: Mapping[str, str], condition: Condition, sizes: Sizes
) -> Completed:
    """Upload a file of ``size`` bytes, visible only when whole."""

    def send(upload: str, number: int, start: int, end: int) -> str:
        with disk_errors(source), source.open("rb") as file:
            file.seek(start)
            data = file.read(end - start)
        if len(data) != end - start:
            raise StorageError(f"{source} became shorter while it was uploaded; write it whole before storing it")
        return tag_of(
            place.client.upload_part(Bucket=place.bucket, Key=place.key, UploadId=upload, PartNumber=number, Body=data)
        )

    return _multipart(place, send, _ranges(size, sizes.part), metadata, condition, sizes.threads)


def copy_parts(place: Place, source: str, tag: str, size: int, metadata: Mapping[str, str], sizes: Sizes) -> str:
    """Copy version ``tag`` of an object within the bucket.

    Args:
        place: of the copy, which must not exist.
        source: key of the original.
        tag: of the original's version.
        size: of it, in bytes.
        metadata: of the copy.
        sizes: of the parts.

    Returns:
        The copy's tag.
    """

    def send(upload: str, number: int, start: int, end: int) -> str:
        answer = place.client.upload_part_copy(
            Bucket=place.bucket,
            Key=place.key,
            UploadId=upload,
            PartNumber=number,
            CopySource={"Bucket": place.bucket, "Key": source},
            CopySourceIfMatch=f'"{tag}"',
            CopySourceRange=f"bytes={start}-{end - 1}",
        )
        return tag_of(answer.get("CopyPartResult", {}))

    ranges = _ranges(size, sizes.copy_part)
    return _multipart(place, send, ranges, metadata, Condition(IfNoneMatch="*"), sizes.threads).tag


def download(place: Place, key: str, sink: int, sizes: Sizes) -> ObjectInfo:
    """Write an object to the descriptor ``sink``.

    The answer to the request of the first part has the object's facts, so that a small object takes one request. All
    parts are of its version, and several are downloaded at once.

    Args:
        place: of the object.
        key: of its facts.
        sink: written from its beginning.
        sizes: of the parts.

    Raises:
        ClientError: the object was changed meanwhile (412), or the server stayed busy.
        BotoCoreError: the answers kept breaking off.
        OSError: no room left on the disk.
        StorageError: the server ignores ranges.
    """
    info, beginning = persistently(_begin_download, place, key, sizes.part)
    with closing(beginning):
        if info.size:
            os.posix_fallocate(sink, 0, info.size)  # a full disk fails before the download, not during it

        def fetch(span: tuple[int, int]) -> None:
            _download_range(place, info.tag, *span, sink, beginning if span[0] == 0 else None)

        in_parallel(fetch, _ranges(info.size, sizes.part), sizes.threads)
    return info


def read_range(place: Place, tag: str, start: int, end: int) -> bytes:
    """Return bytes ``start`` to ``end`` of version ``tag`` of an object.

    It raises the errors of ``download``.
    """

    def ask() -> bytes:
        with closing(_ask_range(place, tag, start, end)) as body:
            return body.read()

    return persistently(ask)


def abort_old(place: Place, before: float, *, dry_run: bool) -> int:
    """Abort uploads that never ended and return their number.

    Args:
        place: the start of their keys.
        before: time before which an upload must have begun, in seconds since 1970 by the server's clock.
        dry_run: only count them.
    """
    pages = place.client.get_paginator("list_multipart_uploads").paginate(Bucket=place.bucket, Prefix=place.key)
    begun = [upload for page in pages for upload in page.get("Uploads", [])]
    old = [upload for upload in begun if _began(place, upload) < before]
    for upload in () if dry_run else old:
        try:
            place.client.abort_multipart_upload(Bucket=place.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        except ClientError as error:
            if error_code(error) != "NoSuchUpload":  # its writer has just ended it, or another process has
                raise
    return len(old)


def _began(place: Place, upload: MultipartUploadTypeDef) -> float:
    """Return the time when an upload began.

    Some servers do not report it. Then it is the time of the upload's newest part, and infinity if it has none.
    """
    if "Initiated" in upload:
        return upload["Initiated"].timestamp()
    pages = place.client.get_paginator("list_parts").paginate(
        Bucket=place.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
    )
    dates = [part["LastModified"].timestamp() for page in pages for part in page.get("Parts", [])]
    return max(dates, default=math.inf)


def _multipart(
    place: Place,
    send: Callable[[str, int, int, int], str],
    ranges: Iterator[tuple[int, int]],
    metadata: Mapping[str, str],
    condition: Condition,
    threads: int,
) -> Completed:
    upload = _begin(place, metadata)

    def send_one(part: tuple[int, tuple[int, int]]) -> CompletedPartTypeDef:
        number, (start, end) = part
        return {"PartNumber": number, "ETag": f'"{persistently(send, upload, number, start, end)}"'}

    try:
        parts = in_parallel(send_one, enumerate(ranges, start=1), threads)
    except BaseException as error:
        _abort(place, upload, error)
        raise
    began = time.monotonic()

    def complete() -> str:
        return tag_of(
            place.client.complete_multipart_upload(
                Bucket=place.bucket, Key=place.key, UploadId=upload, MultipartUpload={"Parts": parts}, **condition
            )
        )

    try:
        # Repeated for the same upload: a new one would send every part again, and leave this one open.
        tag = persistently(complete)
    except ClientError as error:
        # Only after the server's final answer: aborting an upload that it may still be completing could tear the
        # object.
        _abort(place, upload, error)
        raise
    return Completed(tag, time.monotonic() - began)


def _begin(place: Place, metadata: Mapping[str, str]) -> str:
    """Begin an upload and return its id.

    Uploads of the same call whose answers were lost are ended.
    """
    asked = 0

    def ask() -> CreateMultipartUploadOutputTypeDef:
        nonlocal asked
        asked += 1
        begun = place.client.create_multipart_upload(Bucket=place.bucket, Key=place.key, Metadata=dict(metadata))
        if not begun.get("UploadId"):
            raise LostAnswerError(what="it has no UploadId")
        return begun

    begun = persistently(ask)
    upload = begun["UploadId"]
    if asked > 1 or begun["ResponseMetadata"].get("RetryAttempts"):
        try:
            _abort_empty(place, upload)
        except (BotoCoreError, ClientError) as error:  # the credentials may not allow it; `abort_old` finds them later
            say(f"{place.key}: an upload without an answer may have stayed open: {error}")
    return upload


def _abort_empty(place: Place, upload: str) -> None:
    """End the uploads of one key, but ``upload``, that have no parts.

    Those whose answer was lost are among them; no process has their ids. An upload of another writer that has just
    begun may be among them, too: its parts are refused then, and that writer begins again. An upload with parts may be
    about to be completed, and ending it now could tear the object.
    """
    pages = place.client.get_paginator("list_multipart_uploads").paginate(Bucket=place.bucket, Prefix=place.key)
    begun = [each["UploadId"] for page in pages for each in page.get("Uploads", []) if each["Key"] == place.key]
    for other in begun:
        if other == upload:
            continue
        try:
            found = place.client.list_parts(Bucket=place.bucket, Key=place.key, UploadId=other, MaxParts=1)
            if not found.get("Parts"):
                place.client.abort_multipart_upload(Bucket=place.bucket, Key=place.key, UploadId=other)
        except ClientError as error:
            if error_code(error) != "NoSuchUpload":
                raise


def _abort(place: Place, upload: str, error: BaseException) -> None:
    try:
        place.client.abort_multipart_upload(Bucket=place.bucket, Key=place.key, UploadId=upload)
    except (BotoCoreError, ClientError) as failure:
        error.add_note(f"The unfinished upload {upload} of {place.key} could not be aborted: {failure}")


def _ranges(size: int, step: int) -> Iterator[tuple[int, int]]:
    """Cut ``size`` bytes into ranges ``(start, end)`` of ``step`` bytes.

    The step is larger where it would give more parts than S3 allows.
    """
    step = max(step, -(-size // _MOST_PARTS))
    for start in range(0, size, step):
        yield start, min(start + step, size)


def _begin_download(place: Place, key: str, part: int) -> tuple[ObjectInfo, StreamingBody]:
    """Return an object's facts and a stream of its first part."""
    whole = False
    try:
        answer = place.client.get_object(Bucket=place.bucket, Key=place.key, Range=f"bytes=0-{part - 1}")
    except ClientError as error:
        if http_status(error) != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        answer, whole = place.client.get_object(Bucket=place.bucket, Key=place.key), True  # an empty one has no parts
    with ExitStack() as failed:
        failed.callback(answer["Body"].close)
        info = found_object(key, answer).info
        size = _size_of(answer, info.size)
        if info.size != min(size, part):
            raise _was_replaced(place) if whole else _ignored_range(place)
        failed.pop_all()
    return replace(info, size=size), answer["Body"]


def _size_of(answer: GetObjectOutputTypeDef, sent: int) -> int:
    """Return the size of the object that an answer is of."""
    part_of: str | None = answer.get("ContentRange")
    if part_of is None:
        return sent
    size = part_of.rpartition("/")[2]
    if not size.isdecimal():
        raise LostAnswerError(what=f"its Content-Range is {part_of!r}")
    return int(size)


def _ignored_range(place: Place) -> StorageError:
    return StorageError(f"the S3 server ignored a range of {place.key}: it cannot be used for downloads")


def _was_replaced(place: Place) -> StorageError:
    return StorageError(f"s3://{place.bucket}/{place.key} was changed while it was read; read it again")


def _ask_range(place: Place, tag: str, start: int, end: int) -> StreamingBody:
    answer = place.client.get_object(
        Bucket=place.bucket, Key=place.key, IfMatch=f'"{tag}"', Range=f"bytes={start}-{end - 1}"
    )
    if answer["ContentLength"] != end - start:
        answer["Body"].close()
        raise _ignored_range(place)
    return answer["Body"]


def _download_range(place: Place, tag: str, start: int, end: int, sink: int, begun: StreamingBody | None) -> None:
    """Write bytes ``start`` to ``end`` of a version.

    ``begun`` is their stream, where it was requested already.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with closing(begun or _ask_range(place, tag, start, end)) as body:
                for chunk in body.iter_chunks(_MIB):
                    write_all(sink, chunk, start)
                    start += len(chunk)
        except (ClientError, *TRANSPORT_ERRORS) as error:
            if attempt == ATTEMPTS or (isinstance(error, ClientError) and not is_busy(error)):
                raise
        else:
            return  # the body was whole: the SDK raises when one ends early
        begun = None
        pause(attempt)
