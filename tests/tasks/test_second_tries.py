"""A repeated task finds its result and costs hardly anything."""

from __future__ import annotations

import gc
import time

import pytest

from pbg_tasks.tasks.nightly.chain import TASKS, run_chain, run_task
from pbg_tasks.tasks.nightly.plan import plan
from tests.tasks.conftest import ring, workplace

SHARE = 0.1
"""Share of the first time's CPU seconds."""
LEAST = 0.02
"""CPU seconds allowed to a second time in any case: opening the run and reading its result."""


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    with workplace(tmp_path_factory.mktemp("second")) as place:
        place.write_spec({"dimension": 32})
        place.snapshot("d1", ring(4000))
        place.snapshot("d2", ring(4020, seed=1))
        run_chain(place.spec, "d1")
        yield place, plan(place.spec, "d2")["run"]


@pytest.mark.parametrize("task", TASKS)
def test_task_done_twice_costs_a_tenth(night, task):
    first, second = (cpu_seconds(lambda: run_task(task, night[1])) for _ in range(2))
    assert second <= max(SHARE * first, LEAST)


def test_chain_done_twice_costs_a_tenth_beside_plan(night):
    """The plan reads its inputs again each time.

    Only so does it notice that a snapshot has changed.
    """
    place, _ = night
    place.snapshot("d3", ring(19_000, seed=2))  # of fewer edges, each task opens its files as long as it works
    first = cpu_seconds(lambda: run_chain(place.spec, "d3"))
    planning = cpu_seconds(lambda: plan(place.spec, "d3"))
    second = cpu_seconds(lambda: run_chain(place.spec, "d3"))
    assert second - planning <= SHARE * first


def cpu_seconds(work):
    """CPU seconds of work, without a collection of older garbage."""
    gc.disable()
    try:
        started = time.process_time()
        work()
        return time.process_time() - started
    finally:
        gc.enable()
