"""Uploads that killed writers and lost answers left open."""

from __future__ import annotations

from functools import partial

import pytest

from pbg_tasks.checkpoint.writer import claim
from pbg_tasks.errors import StorageError
from pbg_tasks.publish.exchange import Outbox
from pbg_tasks.publish.exchange.manifest import VectorSource
from pbg_tasks.storage import open_store, uploads
from pbg_tasks.tasks.directory.import_claim import claimed
from pbg_tasks.tasks.exchange.delivery import deliver
from pbg_tasks.tasks.release.releases import gc
from tests.storage.fault_proxy import Fault
from tests.storage.unfinished import unfinished
from tests.storage.unfinished import uploads as open_uploads

pytestmark = pytest.mark.s3


def train(store, _):
    with claim(store, "model", "spec", adopt=lambda _: []):
        pass


def import_edges(store, _):
    with claimed([store]):
        pass


def export(store, path):
    outbox = Outbox(path)
    outbox.path("n.npy").write_bytes(b"x")
    deliver(store, outbox, exchange="npy", source=VectorSource(url="elsewhere"), overwrite=False)


WRITERS = {"train": train, "import": import_edges, "export": export}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(("grace", "ended"), [(uploads.GRACE_SECONDS, False), (-60.0, True)], ids=["young", "old"])
def test_next_writer_ends_old_uploads(s3_bucket, tmp_path, monkeypatch, name, grace, ended):
    below, beside = unfinished(f"{s3_bucket}/data", "model/a.h5"), unfinished(s3_bucket, "database/b.h5")
    monkeypatch.setattr(uploads, "GRACE_SECONDS", grace)
    WRITERS[name](open_store(f"{s3_bucket}/data"), tmp_path)
    assert open_uploads(s3_bucket) == ({beside} if ended else {below, beside})


@pytest.mark.parametrize(
    "lost",
    [partial(Fault, "POST", "uploads"), partial(Fault, "POST", "uploadId=", forward=False)],
    ids=["begin", "complete"],
)
def test_collection_ends_uploads_without_any_answer(proxy, behind, s3_bucket, tmp_path, unhurried, lost):
    path = tmp_path / "large"
    path.write_bytes(bytes(17 << 20))
    proxy.faults = [lost(times=999)]
    with pytest.raises(StorageError):
        behind.put_new("runs/a/checkpoint/model.v1.h5", path)
    left = len(open_uploads(s3_bucket))
    assert left
    assert gc(s3_bucket, grace_hours=1)["uploads"] == 0
    assert gc(s3_bucket, grace_hours=-1 / 60)["uploads"] == left
    assert open_uploads(s3_bucket) == set()


def test_refused_listing_of_uploads_stops_no_writer(proxy, behind, s3_bucket, tmp_path, capsys):
    left = unfinished(s3_bucket, "model/a.h5")
    proxy.faults = [Fault("GET", "uploads", status=403, forward=False)]
    train(behind, tmp_path)
    assert "left for the store to remove" in capsys.readouterr().err
    assert open_uploads(s3_bucket) == {left}
