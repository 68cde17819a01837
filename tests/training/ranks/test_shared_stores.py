from __future__ import annotations

import threading

import pytest

from pbg_tasks.errors import StorageError
from pbg_tasks.training.ranks import shared_stores as module
from pbg_tasks.training.ranks.shared_stores import SharedStores


class Clock:
    """Time that passes during a store, and on demand."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


@pytest.mark.parametrize(("takes", "pause"), [(0.5, 10.0), (7.0, 70.0)])
def test_next_store_begins_long_after_slow_one(clock, takes, pause):
    stored = []

    def store(number):
        clock.now += takes
        return {"number": number}

    stores = SharedStores(store, stored.append, every=10.0)
    stores.begin()
    for wait, expected in ((0.0, 1), (pause - 0.1, 1), (0.2, 2)):
        clock.now += wait
        stores.ask()
        assert stores.wait(10)
        assert stored[-1] == {"number": expected}


def test_nothing_is_stored_before_begin_and_after_last(clock):
    stored = []
    stores = SharedStores(lambda number: number, stored.append, every=10.0)
    stores.ask()
    assert stores.wait(10)
    stores.begin()
    assert stores.now() == 1
    clock.now += 1000
    for store in (stores.ask, stores.insist):
        store()
        assert stores.wait(10)
    assert not stored
    stores.begin()
    stores.ask()
    assert stores.wait(10)
    assert stored == [2]


def test_nothing_is_stored_in_background_without_interval():
    stored = []
    stores = SharedStores(lambda number: number, stored.append, every=0.0)
    stores.begin()
    stores.ask()
    stores.insist()
    assert stores.wait(10)
    assert (stores.now(), stored) == (1, [])


def test_stores_never_overlap():
    begun, let, stored = threading.Semaphore(0), threading.Semaphore(0), []

    def store(number):
        begun.release()
        assert let.acquire(timeout=10)
        return number

    stores = SharedStores(store, stored.append, every=10.0)
    stores.begin()
    stores.ask()
    assert begun.acquire(timeout=10)
    for _ in range(3):
        stores.ask()
        stores.insist()
    assert not stores.wait(0.01)
    let.release(2)
    assert stores.wait(10)
    assert stored == [1, 2]


def test_failed_store_is_raised_to_next_caller():
    def store(number):
        raise StorageError(f"store {number}")

    stores = SharedStores(store, lambda _: None, every=10.0)
    stores.begin()
    stores.ask()
    assert stores.wait(10)
    for raising in (stores.check, stores.now):
        with pytest.raises(StorageError, match="store 1"):
            raising()
