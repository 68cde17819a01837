"""Swaps by the only writer of a path, through broken connections."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from pbg_tasks.checkpoint.partial_record import PartialRecord
from pbg_tasks.checkpoint.writer import claim
from pbg_tasks.publish.exchange import Outbox
from pbg_tasks.publish.exchange.manifest import VectorSource
from pbg_tasks.publish.gc_holds import condemn, read_decision
from pbg_tasks.publish.looks import Dates
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.directory.import_claim import claimed
from pbg_tasks.tasks.exchange.delivery import deliver
from tests.checkpoint.samples import SPEC, commit, iteration
from tests.rotation import rotation
from tests.storage.fault_proxy import FaultProxy
from tests.storm import Storm

pytestmark = pytest.mark.s3
ROUNDS, WRITERS = 4, 2


def train(store, _):
    """Train as a gang does: two swaps of HEAD.json an iteration."""
    with claim(store, "checkpoint", SPEC) as writer:
        for number in range(1, ROUNDS + 1):
            begun = iteration(number, epochs=ROUNDS)
            writer.record(PartialRecord(spec=SPEC, writer_epoch=1, number=1, iteration=begun, lease=0))
            commit(writer, number)
    return writer.version == ROUNDS


def collect(store, _):
    """Condemn and remove runs, as one collection does."""
    for number in range(ROUNDS):
        decision = condemn(store, f"run{number}")
        assert decision is not None
        assert decision.remove(Dates(0.0))
        assert decision.move("removing")
        decision.bury()
    return read_decision(store, "run0") is None


def import_edges(store, _):
    for _ in range(ROUNDS):
        with claimed([store]) as claim_:
            claim_.check()
    return True


def export(store, folder):
    for number in range(ROUNDS):
        outbox = Outbox(folder / str(number))
        outbox.path("n.npy").parent.mkdir(exist_ok=True)
        (folder / str(number) / "n.npy").write_bytes(b"%d" % number)
        deliver(store, outbox, exchange="npy", source=VectorSource(url="elsewhere"), overwrite=True)
    return True


@pytest.mark.parametrize("work", [train, collect, import_edges, export])
def test_only_writer_of_path_is_never_refused(object_store, s3_bucket, monkeypatch, tmp_path, unhurried, work):
    storm = Storm(f"{work.__name__} {rotation()}")
    with FaultProxy(object_store.endpoint, storm) as proxy, ThreadPoolExecutor(WRITERS) as pool:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        folders = [tmp_path / str(number) for number in range(WRITERS)]
        for folder in folders:
            folder.mkdir()
        stores = [open_store(f"{s3_bucket}/{number}") for number in range(WRITERS)]
        assert all(pool.map(work, stores, folders))
    assert sum(storm.seen.values()) > ROUNDS
