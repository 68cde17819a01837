"""Removals of runs that are cut off, overtaken or taken over."""

from __future__ import annotations

import time

import pytest

from pbg_tasks.errors import ConflictError, StorageError
from pbg_tasks.publish.gc_holds import condemn, hold, read_decision, tombstone_key
from pbg_tasks.publish.looks import Dates
from tests.publish.nights import GRACE, gc
from tests.publish.runs import write_run
from tests.publish.stepper import HashTaggedStore, Process

TOMBSTONE = tombstone_key("tried")


class FailsOnce:
    """A store that fails to delete one key once."""

    def __init__(self, store, key):
        self._store, self._key = store, key

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if name != "delete":
            return found

        def delete(key):
            if key == self._key:
                self._key = None
                time.sleep(0.3)  # the deletions beside it go on meanwhile
                raise StorageError("busy")
            return found(key)

        return delete


@pytest.fixture
def store(tmp_path):
    return HashTaggedStore(tmp_path)


@pytest.fixture
def removal(store):
    """The decision to remove a run, of which nothing is deleted yet."""
    write_run(store, "tried")
    store.now += 3 * GRACE
    decision = condemn(store, "tried")
    assert decision.remove(Dates(store.now - GRACE))
    return decision


def test_export_that_failed_to_go_goes_later(store):
    write_run(store, "tried")
    for name in ("part0.csv", "part1.csv", "_manifest.json"):
        store.put(f"exports/x/tried/{name}", b"{}")
    store.now += 3 * GRACE
    with pytest.raises(StorageError):
        gc(FailsOnce(store, "exports/x/tried/part0.csv"))
    assert list(store.list("runs/tried/"))
    for _ in range(3):
        store.now += 3 * GRACE
        gc(store)
    assert not list(store.list("exports/"))
    assert not list(store.list("runs/tried/"))


@pytest.mark.usefixtures("removal")
def test_run_being_removed_is_not_condemned(store):
    assert condemn(store, "tried") is None
    assert read_decision(store, "tried").state == "removing"


@pytest.mark.usefixtures("removal")
def test_tombstone_of_removal_at_work_stays(store):
    store.now += GRACE / 2
    gc(store)
    assert read_decision(store, "tried").state == "removing"


@pytest.mark.usefixtures("removal")
def test_tombstone_renewed_before_burial_stays(store):
    store.now += 3 * GRACE
    slow = Process(store, gc)
    while not (slow.coming == ("swap", TOMBSTONE) and b'"removed"' in slow.data):
        assert slow.coming not in {None, ("delete", TOMBSTONE)}
        slow.step()
    assert read_decision(store, "tried").move("removing")
    slow.finish()
    assert slow.error is None
    assert read_decision(store, "tried").state == "removing"


def test_hold_that_loses_to_removal_is_refused(store):
    write_run(store, "tried")
    decision = condemn(store, "tried")
    task = Process(store, lambda paced: hold(paced, "tried"))
    while task.coming != ("swap", TOMBSTONE):
        task.step()
    assert decision.move("removing")  # the collection looked for the hold before it was written
    task.finish()
    assert isinstance(task.error, ConflictError)
