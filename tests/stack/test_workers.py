"""A night on two Celery workers, of which one is killed.

Airflow's processes, Redis, the S3 server and the workers are real; the workers share nothing but these, and differ in
name, scratch and queues, as on two machines.

The tests of this file are one story and run in the order they stand in.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import yaml

from examples.stack import processes
from examples.stack.processes import Service
from examples.stack.stack import Stack
from pbg_tasks.publish import Channel
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.context import RunContext
from tests.operators.specs import small_spec
from tests.stack import backfills, redis
from tests.stack.conftest import edges

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.timeout(20 * 60),
    pytest.mark.skipif("PBG_E2E_NIGHTS" not in os.environ, reason="takes minutes; set PBG_E2E_NIGHTS to run it"),
    pytest.mark.skipif(redis.missing() is not None, reason=str(redis.missing())),
]

BUCKET, GRAPH, DAY = "fleet", "small", "2026-11-20"
DAG = f"reembed_{GRAPH}"
WORKERS = ("left", "right")
EITHER = "either"
"""Queue of both workers; each has one of its own, too, of its name."""
NAME = "PBG_TEST_WORKER"
"""Variable by which processes of a worker are found, and hosts named."""
until = partial(backfills.until, minutes=8, pause=0.2)
SETTINGS = {
    "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
    "AIRFLOW__CORE__HOSTNAME_CALLABLE": "worker_name.name",
    # A worker that is lost is noticed after seconds, not five minutes.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",  # the machine may be busy
}
HOSTNAME = f"""import os, socket


def name():
    return os.environ.get({NAME!r}) or socket.gethostname()
"""


def spec():
    """Return a spec whose training takes a while."""
    found = small_spec(f"s3://{BUCKET}", GRAPH)
    found["model"] |= {"num_epochs": 150, "dimension": 32}
    found["train"] |= {"early_stopping": None}
    found["airflow"] = {
        "few_tasks": True,
        "all": {"queue": "left", "retry_delay": 1},
        "tasks": {"train": {"queue": EITHER}, "finish": {"queue": "right"}},
    }
    return found


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """A running stack with Redis and two workers."""
    directory = tmp_path_factory.mktemp("workers")
    (directory / "graphs").mkdir()
    (directory / "graphs" / "small.yaml").write_text(yaml.safe_dump(spec()))
    (directory / "airflow" / "config").mkdir(parents=True)
    (directory / "airflow" / "config" / "worker_name.py").write_text(HOSTNAME)
    with pytest.MonkeyPatch.context() as patch:
        broker = redis.start(directory)
        celery = {"AIRFLOW__CELERY__BROKER_URL": broker, "AIRFLOW__CELERY__RESULT_BACKEND": broker}
        stack = Stack(directory, graphs=directory / "graphs", settings=SETTINGS | celery)
        try:
            for name, value in stack.start_store(BUCKET).items():
                patch.setenv(name, value)
            open_store(f"s3://{BUCKET}").put(f"snapshots/{DAY}/edges.parquet", edges(range(100)))
            stack.start_airflow(print)
            for name in WORKERS:
                start_worker(stack, name)
            yield stack
        finally:
            stack.stop()
            shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def api(stack):
    """Airflow's API with the DAG read."""
    api = stack.airflow().api
    until("the DAG is read", lambda: DAG in api.dag_ids(), api.import_errors)
    return api


def scratch(stack, name):
    return stack.directory / "scratch" / name


def start_worker(stack, name):
    own = {NAME: name, "PBG_SCRATCH": str(scratch(stack, name))}
    options = [f"--queues={name},{EITHER}", f"--celery-hostname={name}@fleet", "--concurrency=2", "--skip-serve-logs"]
    command = [sys.executable, "-m", "airflow", "celery", "worker", *options, "--without-gossip", "--without-mingle"]
    Service(name, stack.directory).start(command, stack.airflow().environment() | own)


def processes_of(stack, name):
    """Return the running processes of a worker.

    Those in sessions of their own are among them.
    """
    found = []
    for process in processes.members(stack.directory):
        with suppress(OSError):
            if f"{NAME}={name}".encode() in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                found.append(process)
    return found


def kill(stack, name):
    """End a worker at once, as the loss of its machine does."""
    while found := processes_of(stack, name):
        for process in found:
            process.signal(signal.SIGKILL)
        time.sleep(0.05)


def instances(api, run_id):
    """Return Airflow's instances of a run's tasks, by task."""
    found = api.get(f"dags/{DAG}/dagRuns/{run_id}/taskInstances")["task_instances"]
    return {each["task_id"]: each for each in found}


def states(api, run_id):
    return {
        name: (each["state"], each["hostname"], each["try_number"]) for name, each in instances(api, run_id).items()
    }


def log_of(api, run_id, task):
    answer = api.get(f"dags/{DAG}/dagRuns/{run_id}/taskInstances/{task}/logs/1")
    return "\n".join(str(line.get("event", "")) for line in answer["content"])


def training(stack, name):
    """Return the scratch of a worker that trains.

    The list is empty for another worker.
    """
    words = b"\0-m\0pbg_tasks\0train\0"
    for process in processes_of(stack, name):
        with suppress(OSError):
            if words in Path(f"/proc/{process.pid}/cmdline").read_bytes():
                return [each for each in scratch(stack, name).glob("pbg-scratch-*") if any(each.glob("[!.]*"))]
    return []


@pytest.fixture(scope="module")
def night(stack, api):
    """A night with a changed spec and a killed worker.

    Both happened while it trained. Returns the run's id in Airflow, the killed worker, the other one, and what the
    first one left.
    """
    run_id = api.trigger(DAG, partition_key=DAY)
    lost = until(
        "a worker trains",
        lambda: next((name for name in WORKERS if training(stack, name)), None),
        lambda: states(api, run_id),
    )
    (other,) = set(WORKERS) - {lost}
    changed = spec()
    changed["model"] |= {"dimension": 8, "num_epochs": 1, "comparator": "cos"}
    changed["gates"] |= {"min_mrr": 1.5}
    (stack.directory / "graphs" / "small.yaml").write_text(yaml.safe_dump(changed))
    kill(stack, lost)
    left = list(scratch(stack, lost).glob("pbg-scratch-*"))
    until("the other worker trains", lambda: training(stack, other), lambda: states(api, run_id))

    assert not processes_of(stack, lost)
    start_worker(stack, lost)
    until("the night ends", lambda: api.run_state(DAG, run_id) in {"success", "failed"}, lambda: states(api, run_id))
    return run_id, lost, other, left


def test_night_succeeds_though_worker_is_lost(api, night):
    run_id, lost, other, _ = night
    assert api.run_state(DAG, run_id) == "success", states(api, run_id)
    found = instances(api, run_id)
    assert {each["state"] for each in found.values()} == {"success"}
    train = found.pop("train.train")
    assert (train["try_number"], train["hostname"]) == (2, other), lost
    assert {name: each["hostname"] for name, each in found.items()} == {
        name: each["queue"] for name, each in found.items()
    }
    assert {each["hostname"] for each in found.values()} == set(WORKERS)
    assert {each["try_number"] for each in found.values()} == {1}


def test_next_task_of_lost_worker_removes_its_scratch(stack, api, night):
    run_id, lost, _, left = night
    assert left
    assert not [each for each in left if each.exists()]
    swept = [
        name
        for name, each in instances(api, run_id).items()
        if each["hostname"] == lost and f"removed {left[0]}, which" in log_of(api, run_id, name)
    ]
    assert len(swept) == 1
    assert swept[0] in {"left": {"summary", "report"}, "right": {"release.finish"}}[lost]
    for name in WORKERS:
        assert list(scratch(stack, name).iterdir()) == []


def test_run_keeps_the_spec_it_was_planned_with(api, night):
    run_id, *_ = night
    summary = api.result(DAG, run_id, "summary")
    run = RunContext.open(summary["run"])
    planned = spec()["model"]
    assert {name: getattr(run.spec.graph.model, name) for name in ("dimension", "num_epochs", "comparator")} == {
        name: planned[name] for name in ("dimension", "num_epochs", "comparator")
    }
    assert (summary["epochs"], summary["gate"]["passed"]) == (planned["num_epochs"], True)
    release = Channel(open_store(f"s3://{BUCKET}/store/{GRAPH}"), "production").current().release
    assert release.snapshot == DAY
