from __future__ import annotations

import threading
import time

import pytest

from pbg_tasks.storage.parallel import in_parallel, work_off


def test_no_item_needs_a_thread():
    assert in_parallel(str, [], 0) == []


def test_one_worker_works_here_and_in_order():
    seen = []
    work_off(iter(range(5)), 1, lambda worker, item: seen.append((worker, item, threading.get_ident())))
    assert seen == [(0, item, threading.get_ident()) for item in range(5)]


def test_several_workers_do_each_item_once():
    seen, lock = [], threading.Lock()

    def work(worker, item):
        time.sleep(0.002)
        with lock:
            seen.append((item, worker))

    work_off(iter(range(60)), 3, work)
    assert sorted(item for item, _ in seen) == list(range(60))
    assert {worker for _, worker in seen} == {0, 1, 2}


def test_delay_holds_back_all_but_first_worker():
    started = time.monotonic()
    first = {}

    def items():
        number = 0
        while 1 not in first:  # the first item ends the delay, so that the test does not depend on the machine's speed
            assert time.monotonic() < started + 5
            yield (number := number + 1)

    def work(worker, item):
        first.setdefault(worker, (time.monotonic() - started, item))
        time.sleep(0.01)

    work_off(items(), 2, work, delay=0.2)
    assert first[0][1] == 1
    assert first[1][0] >= 0.2
    assert first[1][1] > 2  # the first item did not wait for the delay


def test_delay_longer_than_the_work_is_skipped():
    started = time.monotonic()
    work_off(iter(range(3)), 4, lambda *_: None, delay=30)
    assert time.monotonic() - started < 5


def test_error_of_any_worker_ends_all():
    done = []

    def work(worker, item):
        time.sleep(0.001)
        if item == 10:
            raise ValueError("item 10")
        done.append(item)

    with pytest.raises(ValueError, match="item 10"):
        work_off(iter(range(10_000)), 3, work)
    assert len(done) < 1000
