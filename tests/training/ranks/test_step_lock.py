from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pbg_tasks.training.ranks.parameters.step_lock import StepLock
from tests.waiting import wait_until

PATIENCE = 20  # seconds; only a defective lock takes so long


def test_steps_run_side_by_side():
    step_lock, inside = StepLock(2), threading.Barrier(2, timeout=PATIENCE)

    def step():
        with step_lock.step():
            inside.wait()  # passes when both are

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(step) for _ in range(2)]:
            done.result()
    assert step_lock.stall == 0


def test_exclusive_holder_waits_for_steps_and_delays_new():
    step_lock, seen = StepLock(2), []
    first_is_in, first_may_go, alone_is_in, alone_may_go = (threading.Event() for _ in range(4))

    def first():
        with step_lock.step():
            first_is_in.set()
            first_may_go.wait(PATIENCE)
            seen.append("first step")

    def alone():
        with step_lock.alone():
            alone_is_in.set()
            alone_may_go.wait(PATIENCE)
            seen.append("alone")

    def second():
        with step_lock.step():
            seen.append("second step")

    with ThreadPoolExecutor(3) as threads:
        jobs = [threads.submit(first)]
        first_is_in.wait(PATIENCE)
        jobs.append(threads.submit(alone))
        wait_until(lambda: step_lock._wanted == 1, PATIENCE)
        assert not alone_is_in.wait(0.05)
        jobs.append(threads.submit(second))
        wait_until(lambda: step_lock._held_back == 1, PATIENCE)
        assert seen == []
        first_may_go.set()
        assert alone_is_in.wait(PATIENCE)
        time.sleep(0.05)
        assert seen == ["first step"]
        alone_may_go.set()
        for job in jobs:
            job.result()
    assert seen == ["first step", "alone", "second step"]
    assert step_lock.stall >= 0.05 / 2  # of two workers one waited


def test_neither_steps_nor_exclusive_holders_starve():
    step_lock, end, counts = StepLock(3), threading.Event(), {}

    def again_and_again(name, enter):
        counts[name] = 0
        while not end.is_set():
            with enter():
                time.sleep(0.0005)
            counts[name] += 1

    with ThreadPoolExecutor(5) as threads:
        jobs = [threads.submit(again_and_again, f"step {number}", step_lock.step) for number in range(3)]
        jobs += [threads.submit(again_and_again, f"alone {number}", step_lock.alone) for number in range(2)]
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and not (len(counts) == 5 and min(counts.values()) >= 20):
            time.sleep(0.01)
        end.set()
        for job in jobs:
            job.result()
    assert min(counts.values()) >= 20


def test_no_step_runs_beside_exclusive_holder():
    step_lock, steps, alone, wrong = StepLock(4), set(), set(), []

    def act(number, enter, mine, others):
        for _ in range(200):
            with enter():
                mine.add(number)
                time.sleep(0)
                if others - {number}:
                    wrong.append(number)
                mine.discard(number)

    with ThreadPoolExecutor(6) as threads:
        jobs = [threads.submit(act, number, step_lock.step, steps, alone) for number in range(4)]
        jobs += [threads.submit(act, number, step_lock.alone, alone, steps) for number in (8, 9)]
        for job in jobs:
            job.result()
    assert wrong == []


@pytest.mark.parametrize("context", ["step", "alone"])
def test_error_inside_leaves_the_lock_open(context):
    step_lock = StepLock()
    with pytest.raises(ZeroDivisionError), getattr(step_lock, context)():
        raise ZeroDivisionError
    with step_lock.step():
        pass
    with step_lock.alone():
        pass
