from __future__ import annotations

import threading

import pytest

from pbg_tasks.errors import ConfigError, ConflictError
from pbg_tasks.storage import LocalStore
from pbg_tasks.tasks.directory.import_claim import ImportClaim, claimed
from pbg_tasks.tasks.directory.importing import import_edges
from pbg_tasks.tasks.files import UNFINISHED
from tests.defects.imports import TSV, Import, ring


def test_one_of_two_simultaneous_imports_wins(tmp_path):
    for round_ in range(20):
        stores = [LocalStore(tmp_path / str(round_)) for _ in range(2)]
        barrier, results = threading.Barrier(2), []

        def take(store, barrier=barrier, results=results):
            claim = ImportClaim()
            seen = store.head
            store.head = lambda key: (seen(key), barrier.wait(5))[0]  # both look before either takes it
            try:
                claim.take(store)
                results.append("won")
            except ConflictError:
                results.append("lost")

        threads = [threading.Thread(target=take, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == ["lost", "won"]


def test_living_import_is_not_pushed_aside(tmp_path):
    store = LocalStore(tmp_path)
    with claimed([store]), pytest.raises(ConflictError, match="alive"), claimed([LocalStore(tmp_path)], patience=7):
        pass
    assert store.head(UNFINISHED) is None


def test_import_taken_over_stops_at_next_check(tmp_path):
    store = LocalStore(tmp_path)

    def overtaken():
        with claimed([store]) as claim:
            claim.changing = True
            ImportClaim().take(store)
            claim.check()

    with pytest.raises(ConflictError, match="took this directory over"):
        overtaken()
    assert store.head(UNFINISHED) is not None  # the other's


@pytest.mark.parametrize(
    ("before", "changing", "left"), [(False, False, False), (False, True, True), (True, False, True)]
)
def test_failed_import_leaves_mark_if_unfinished(tmp_path, before, changing, left):
    store = LocalStore(tmp_path)
    if before:
        store.put(UNFINISHED, b"cut off")

    def failing():
        with claimed([store]) as claim:
            claim.changing = changing
            raise ValueError("bad row")

    with pytest.raises(ValueError, match="bad row"):
        failing()
    assert (store.head(UNFINISHED) is not None) == left
    with claimed([store]):
        pass
    assert store.head(UNFINISHED) is None


def test_edge_path_that_is_named_twice_is_refused(tmp_path):
    work = Import(tmp_path)
    lists = [work.write(ring(6)), work.write(ring(4), "test.tsv")]
    config = work.config(1, edge_paths=(f"{tmp_path}/train", f"{tmp_path}/train/"))
    with pytest.raises(ConfigError, match="edge_paths: one is named twice"):
        import_edges(config, lists, TSV)
