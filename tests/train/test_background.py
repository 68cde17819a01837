from __future__ import annotations

import threading
import time
import weakref

import pytest

from pbg_tasks.errors import StorageError
from pbg_tasks.train.data import background
from pbg_tasks.train.data.background import Background


class Thing:
    """Something that can be watched."""


def test_jobs_are_done_in_order_by_one_thread():
    done = []
    with Background("test") as thread:
        for number in range(100):
            thread.submit(lambda number=number: done.append((number, threading.current_thread().name)))
        thread.drain()
        assert done == [(number, "test") for number in range(100)]


def test_jobs_may_be_submitted_before_it_starts():
    thread = Background("test")
    sum_of = thread.submit(sum, [1, 2])
    with thread:
        assert thread.wait(sum_of) == 3


class Clock:
    """A clock that goes on when it is told to, and tells when it is first looked at."""

    def __init__(self):
        self.now = 0.0
        self.looked_at = threading.Event()

    def perf_counter(self):
        self.looked_at.set()
        return self.now


def test_waiting_is_counted_and_working_is_not(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(background, "time", clock)

    def take():
        clock.looked_at.wait()  # somebody waits for this
        clock.now += 0.25

    with Background("test") as thread:
        slow = thread.submit(take)
        clock.now += 5  # of work
        thread.wait(slow)
        thread.wait(slow)
    assert thread.waited == 0.25


def test_the_first_error_is_everybodys_and_the_last_thing_that_happens():
    ran = []

    def fail():
        raise StorageError("the disk is on fire")

    with Background("test") as thread:
        thread.check()
        before, failed, after = thread.submit(ran.append, 1), thread.submit(fail), thread.submit(ran.append, 2)
        for future in (failed, after):
            with pytest.raises(StorageError, match="on fire"):
                thread.wait(future)
        with pytest.raises(StorageError, match="on fire"):
            thread.check()
        with pytest.raises(StorageError, match="on fire"):
            thread.drain()
        thread.wait(before)
    assert ran == [1]


def test_nothing_begins_after_its_end_and_the_job_under_way_is_finished():
    begun, ended = threading.Event(), []

    def work():
        begun.set()
        time.sleep(0.1)
        ended.append(1)

    with Background("test") as thread:
        thread.submit(work)
        for _ in range(5):
            thread.submit(ended.append, 2)
        begun.wait()
    assert ended == [1]
    assert not thread._thread.is_alive()


def test_its_end_waits_no_longer_than_its_patience():
    over = threading.Event()
    started = time.monotonic()
    with Background("test", patience=0.1) as thread:
        thread.submit(over.wait)
    assert time.monotonic() - started < 2
    over.set()


def test_what_a_job_was_given_is_let_go_of_when_it_is_done():
    with Background("test") as thread:
        thing = Thing()
        watched = weakref.ref(thing)
        done = thread.submit(id, thing)
        del thing
        thread.wait(done)
        time.sleep(0.1)  # nothing else to do: it must not hold on to the last job
        assert watched() is None
