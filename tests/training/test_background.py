from __future__ import annotations

import threading
import time
import weakref

import pytest

from pbg_tasks.errors import StorageError
from pbg_tasks.training.data import background
from pbg_tasks.training.data.background import Background
from tests.waiting import wait_until


class Thing:
    """Object that can be watched."""


def test_jobs_run_in_order_in_one_thread():
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
    """Clock that advances on demand, and reports its first reading."""

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
        clock.looked_at.wait()  # the main thread waits for this job
        clock.now += 0.25

    with Background("test") as thread:
        slow = thread.submit(take)
        clock.now += 5  # of work
        thread.wait(slow)
        thread.wait(slow)
    assert thread.waited == 0.25


def test_first_error_is_raised_to_all_waiting():
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


def test_end_finishes_active_job_and_begins_none():
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


def test_end_waits_no_longer_than_its_patience():
    over = threading.Event()
    started = time.monotonic()
    with Background("test", patience=0.1) as thread:
        thread.submit(over.wait)
    assert time.monotonic() - started < 2
    over.set()


def test_arguments_of_finished_job_are_released():
    with Background("test") as thread:
        thing = Thing()
        watched = weakref.ref(thing)
        done = thread.submit(id, thing)
        del thing
        thread.wait(done)
        wait_until(lambda: watched() is None)  # the idle thread must not hold on to the last job
