"""Training through the triggerer.

It is deferred, watched on an event loop, and taken up again.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import threading
import time
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from structlog.testing import capture_logs

from pbg_operators.internals import RuntimeTaskInstance
from pbg_operators.kubernetes.watch import Watch
from pbg_operators.task import RetryableError
from tests.operators.kubernetes.conftest import JOB, operator
from tests.operators.kubernetes.jobs import QUICK, RANKS, RESULT, TRAIN, logged_lines


def deferred(context, **changes):
    """Run the task until it is deferred.

    Returns it and the trigger as another process makes it.
    """
    task = operator(2, deferrable=True, **changes)
    with pytest.raises(TaskDeferred) as caught:
        task.execute(context)
    assert caught.value.method_name == "execute_complete"
    path, arguments = caught.value.trigger.serialize()
    module, _, name = path.rpartition(".")
    return task, getattr(importlib.import_module(module), name)(**json.loads(json.dumps(arguments)))


async def first(trigger):
    try:
        return await anext(trigger.run())
    finally:
        await trigger.cleanup()


def test_successful_gang_ends_the_task(double, fake_pbg, context):
    fake_pbg(QUICK)
    task, trigger = deferred(context)
    with capture_logs() as logged:
        event = asyncio.run(first(trigger))
    assert event.payload == {}
    assert {"[rank 0] trained", "[rank 1] trained"} <= set(logged_lines(logged))
    assert operator(2).execute_complete(context, event.payload) == RESULT
    assert task.execute_complete(context, event.payload) == RESULT


@pytest.mark.parametrize(("status", "expected"), [(2, AirflowFailException), (12, RetryableError)])
def test_failed_gang_fails_the_task(double, fake_pbg, context, status, expected):
    fake_pbg(RANKS + f"    end('error: of some kind', {status})")
    task, trigger = deferred(context)
    event = asyncio.run(first(trigger))
    assert json.loads(json.dumps(event.payload)) == event.payload
    with pytest.raises(expected, match=f"Job {JOB}-1: rank"):
        task.execute_complete(context, event.payload)


def test_users_kill_deletes_the_job(double, fake_pbg, context):
    fake_pbg(TRAIN)
    _, trigger = deferred(context)

    async def killed():
        running = asyncio.create_task(first(trigger))
        await asyncio.to_thread(double.printed, 0, "training")
        running.cancel()
        await trigger.on_kill()

    asyncio.run(killed())
    double.wait(lambda: not double.jobs() and not double.pods())


def test_kill_waits_for_no_look_at_other_jobs(double, fake_pbg, context, monkeypatch):
    """Looks take long where the API is busy."""
    fake_pbg(TRAIN)
    _, trigger = deferred(context)
    looks, over = [], threading.Event()
    monkeypatch.setattr(Watch, "look", lambda watch: looks.append(watch) or (over.wait(60) and None))

    async def killed():
        others = [asyncio.create_task(first(type(trigger)(**trigger.serialize()[1]))) for _ in range(40)]
        while len(looks) < min(16, (os.cpu_count() or 1) + 4):  # noqa: ASYNC110 - looks are in threads
            await asyncio.sleep(0.05)
        try:
            await asyncio.wait_for(trigger.on_kill(), 10)
        finally:
            over.set()
            for each in others:
                each.cancel()

    asyncio.run(killed())
    double.wait(lambda: not double.jobs())


@pytest.mark.parametrize(("map_index", "key"), [(-1, "train"), (3, "train_3")])
def test_job_that_another_triggerer_watches_stays(double, fake_pbg, context, monkeypatch, map_index, key):
    """Airflow cancels a moved trigger as a user's kill does."""
    fake_pbg(QUICK)
    _, trigger = deferred(context)
    trigger.task_instance = SimpleNamespace(dag_id="g", run_id="r", task_id="train", map_index=map_index)
    states = {"r": {key: "deferred"}}
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", lambda **_: states)
    asyncio.run(trigger.on_kill())
    assert double.jobs()
    states["r"][key] = "failed"
    asyncio.run(trigger.on_kill())
    double.wait(lambda: not double.jobs())


def test_kill_counts_where_state_is_unknown(double, fake_pbg, context, monkeypatch):
    def fails(**_):
        raise RuntimeError("no answer")

    fake_pbg(QUICK)
    _, trigger = deferred(context)
    trigger.task_instance = SimpleNamespace(dag_id="g", run_id="r", task_id="train", map_index=-1)
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", fails)
    asyncio.run(trigger.on_kill())
    double.wait(lambda: not double.jobs())


def test_replaced_triggerer_continues_logs_where_left(double, fake_pbg, context):
    fake_pbg(RANKS + "    print('before', flush=True); time.sleep(1.5); print('after', flush=True)")
    _, trigger = deferred(context)

    async def replaced(logged):
        running = asyncio.create_task(first(trigger))
        deadline = time.monotonic() + 30
        while not {"[rank 0] before", "[rank 1] before"} <= set(logged_lines(logged)):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with capture_logs() as logged:
        asyncio.run(replaced(logged))
        _, again = deferred(context)
        assert asyncio.run(first(again)).payload == {}
    said = [line for line in logged_lines(logged) if line.startswith("[rank")]
    assert sorted(said) == ["[rank 0] after", "[rank 0] before", "[rank 1] after", "[rank 1] before"]


def test_refusal_of_api_reaches_the_task(double, fake_pbg, context):
    fake_pbg(QUICK)
    task, trigger = deferred(context)
    double.rules = []
    event = asyncio.run(first(trigger))
    with pytest.raises(AirflowFailException, match=r"access: .* forbidden"):
        task.execute_complete(context, event.payload)
