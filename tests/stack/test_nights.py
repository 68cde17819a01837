"""A backfill of a chain of nights through a real Airflow: several at once, in order all the same.

Minutes of processor time, so only where ``PBG_E2E_NIGHTS`` is set.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress

import pytest
import yaml

from examples.stack.api import AirflowApiError
from examples.stack.stack import Stack
from tests.operators.specs import small_spec
from tests.stack.conftest import edges

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.timeout(60 * 25),
    pytest.mark.skipif("PBG_E2E_NIGHTS" not in os.environ, reason="takes minutes; set PBG_E2E_NIGHTS to run it"),
]

DAYS = ["2026-11-10", "2026-11-11"]
DAG = "nightly_days"
MINUTES = 20


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """A running stack with a graph of two days."""
    directory = tmp_path_factory.mktemp("nights")
    (directory / "graphs").mkdir()
    for at, day in enumerate(DAYS):
        (directory / "snapshots" / day).mkdir(parents=True)
        (directory / "snapshots" / day / "edges.parquet").write_bytes(edges(range(at, 100 + at)))
    nights = {"walk": "chain", "first": DAYS[0], "calendar": {"cron": "0 2 * * *"}}
    spec = {**small_spec(directory, "days"), "nights": nights}
    (directory / "graphs" / "days.yaml").write_text(yaml.safe_dump(spec))
    stack = Stack(directory, graphs=directory / "graphs")
    try:
        stack.start_store("unused")
        stack.start_airflow(print)
        yield stack
    finally:
        stack.stop()


def backfill(stack, how):
    arguments = f"backfill create --dag-id {DAG} --from-date {DAYS[0]} --to-date {DAYS[-1]}T23:59:59"
    command = [sys.executable, "-m", "airflow", *arguments.split(), "--max-active-runs", "3"]
    subprocess.run([*command, "--reprocess-behavior", how], env=stack.airflow().environment(), check=True)


def backfilled(api):
    """Return the runs of backfills; the schedule made one for yesterday, which has no snapshot."""
    return [run for run in api.runs(DAG) if run["run_type"] == "backfill"]


def finished(api, count):
    deadline = time.monotonic() + 60 * MINUTES
    runs = []
    while True:
        with suppress(AirflowApiError):  # on a busy machine an answer may come too late
            runs = backfilled(api)
        if len(runs) == count and all(run["state"] in {"success", "failed"} for run in runs):
            return {run["partition_key"]: run["state"] for run in runs}
        assert time.monotonic() < deadline, runs
        time.sleep(2)


def test_days_started_at_once_continue_each_other(days):
    api = days.airflow().api
    deadline = time.monotonic() + 60
    while DAG not in api.dag_ids():
        assert time.monotonic() < deadline, api.import_errors()
        time.sleep(0.5)
    for dag in (DAG, "drill_days"):
        api.unpause(dag)
    backfill(days, "none")
    assert finished(api, len(DAYS)) == dict.fromkeys(DAYS, "success")
    waits = [
        line
        for run in backfilled(api)
        for task in api.tasks(DAG, run["dag_run_id"])
        if task.task == "prepare.plan"
        for line in api.log(DAG, run["dag_run_id"], task)
        if "out_of_turn" in line
    ]
    assert waits
    listed = history(days)
    assert [(each["release"], each["snapshot"]) for each in listed] == list(enumerate(DAYS, start=1))
    assert [each["current"] for each in listed] == [False, True]


def test_doing_them_again_changes_nothing(days):
    api = days.airflow().api
    before = history(days)
    backfill(days, "completed")
    assert finished(api, 2 * len(DAYS)) == dict.fromkeys(DAYS, "success")
    assert history(days) == before


def history(stack):
    from pbg_tasks.tasks.show import history as listed

    return listed(stack.directory / "graphs" / "days.yaml")
