"""Uploads in parts that end together, or never ended.

When several writers complete an upload of one object at once, one of them wins. Killed writers leave uploads that no
listing of objects shows.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from botocore.stub import Stubber

from pbg_tasks.errors import ConflictError
from pbg_tasks.storage.s3 import S3Store
from pbg_tasks.storage.s3_client import connect
from pbg_tasks.storage.s3_transfer import Sizes
from pbg_tasks.tasks.release.releases import gc
from tests.storage.fault_proxy import Fault
from tests.storage.unfinished import unfinished, uploads

MIB = 1 << 20
RACERS = 8


@pytest.mark.rotated(3)
@pytest.mark.s3
def test_one_of_many_simultaneous_completions_succeeds(s3_bucket, tmp_path):
    """Complete uploads of one object at the same moment from several threads.

    The server of the tests lets several of them pass its condition in 30 % of such rounds.
    """
    path = tmp_path / "large"
    path.write_bytes(bytes(6 * MIB))
    bucket, _, prefix = s3_bucket.removeprefix("s3://").partition("/")
    stores = [S3Store(bucket, prefix, connect(), Sizes(part=5 * MIB)) for _ in range(RACERS)]

    def create(racer, number):
        try:
            stores[racer].put_new(f"race{number}", path, metadata={"by": str(racer)})
        except ConflictError:
            return None
        return str(racer)

    with ThreadPoolExecutor(RACERS) as pool:
        for number in range(8):
            winners = pool.map(create, range(RACERS), [number] * RACERS)
            assert [name for name in winners if name] == [stores[0].head(f"race{number}").metadata["by"]]


@pytest.mark.s3
def test_upload_overwritten_while_completing_conflicts(s3_bucket, store, proxy, behind, tmp_path):
    path = tmp_path / "large"
    path.write_bytes(bytes(17 * MIB))
    proxy.faults = [Fault("HEAD", "/k", before=lambda: store.put("k", b"of another"), truncate=1)]
    with pytest.raises(ConflictError):
        behind.put_new("k", path)
    assert store.get("k").data == b"of another"


@pytest.mark.s3
def test_old_unfinished_uploads_are_aborted(store, s3_bucket):
    ours, others = unfinished(s3_bucket, "runs/a/model.h5"), unfinished(s3_bucket, "notes")
    store.put_new("runs/a/spec.json", b"{}")
    now = store.head("runs/a/spec.json").modified
    assert store.abort_uploads("runs/", before=now - 60) == 0
    assert store.abort_uploads("runs/", before=now + 60, dry_run=True) == 1
    assert uploads(s3_bucket) == {ours, others}
    assert store.abort_uploads("runs/", before=now + 60) == 1
    assert uploads(s3_bucket) == {others}
    assert [info.key for info in store.list()] == ["runs/a/spec.json"]
    assert store.abort_uploads("runs/", before=now + 60) == 0


@pytest.mark.s3
def test_gc_aborts_uploads_after_its_grace(s3_bucket):
    upload = unfinished(s3_bucket, "runs/a/checkpoint/model.v1.h5")
    assert gc(s3_bucket, grace_hours=72)["uploads"] == 0
    assert uploads(s3_bucket) == {upload}
    assert gc(s3_bucket, grace_hours=-1 / 60, dry_run=True)["uploads"] == 1
    assert uploads(s3_bucket) == {upload}
    assert gc(s3_bucket, grace_hours=-1 / 60)["uploads"] == 1
    assert uploads(s3_bucket) == set()


@pytest.mark.parametrize("dated", [False, True])
def test_upload_without_date_has_age_of_newest_part(dated):
    """Check servers that report an upload's begin, and others."""
    client = connect({"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_REGION": "us-east-1"})
    began, came = datetime.fromtimestamp(100, UTC), datetime.fromtimestamp(200, UTC)
    upload = {"Key": "p/runs/a", "UploadId": "u"} | ({"Initiated": began} if dated else {})
    empty = {"Key": "p/runs/b", "UploadId": "v"}
    with Stubber(client) as answers:
        for before in (100, 101, 201):
            listed = {"Uploads": [upload, empty]}
            answers.add_response("list_multipart_uploads", listed, {"Bucket": "bucket", "Prefix": "p/runs/"})
            for each, parts in ((upload, [{"PartNumber": 1, "LastModified": came}]), (empty, [])):
                if "Initiated" not in each:
                    asked = {"Bucket": "bucket", "Key": each["Key"], "UploadId": each["UploadId"]}
                    answers.add_response("list_parts", {"Parts": parts}, asked)
            found = S3Store("bucket", "p", client).abort_uploads("runs/", before=before, dry_run=True)
            assert found == (before > (100 if dated else 200))
        answers.assert_no_pending_responses()
