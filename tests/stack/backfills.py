"""Backfills of nightly DAGs in a running stack, and their ends."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress

from examples.stack.api import AirflowApiError
from pbg_tasks.tasks.view.show import history


def nightly(graph):
    return f"nightly_{graph}"


def until(what, reached, state=lambda: None, *, minutes=60, pause=2.0):
    """Wait for a state, with pauses in seconds.

    On a busy machine an answer of Airflow's may come too late.
    """
    deadline = time.monotonic() + 60 * minutes
    while True:
        with suppress(AirflowApiError):
            if found := reached():
                return found
        assert time.monotonic() < deadline, f"not after {minutes} minutes: {what}: {state()}"
        time.sleep(pause)


def backfill(nights, graph, days, how, *, at_once):
    words = f"backfill create --dag-id {nightly(graph)} --from-date {days[0]} --to-date {days[-1]}T23:59:59"
    command = [sys.executable, "-m", "airflow", *words.split(), "--max-active-runs", str(at_once)]

    def created():
        run = [*command, "--reprocess-behavior", how]
        done = subprocess.run(run, env=nights.airflow().environment(), check=False, capture_output=True, text=True)
        assert not done.returncode or "AlreadyRunningBackfill" in done.stderr, done.stderr
        return not done.returncode

    # The scheduler checks every half a minute whether a backfill is over; until then a DAG can have no other.
    until(f"a backfill of {graph} begins", created, lambda: "the one before is still running")


def backfilled(api, graph):
    """Return the runs of backfills.

    The schedule made another run for yesterday, which has no snapshot.
    """
    return [run for run in api.runs(nightly(graph)) if run["run_type"] == "backfill"]


def ended(api, graph, count):
    """Wait for so many ended backfill runs; return them, oldest first."""

    def reached():
        runs = backfilled(api, graph)
        over = len(runs) == count and all(run["state"] in {"success", "failed"} for run in runs)
        return sorted(runs, key=lambda run: run["start_date"]) if over else None

    return until(f"{count} runs of {graph} end", reached, lambda: backfilled(api, graph))


def by_day(runs):
    return {run["partition_key"]: run["state"] for run in runs}


def states(api, graph, run_id):
    return {task.task: task.state for task in api.tasks(nightly(graph), run_id)}


def releases(nights, graph):
    """Return a graph's releases and its served snapshot.

    Releases are by number, each with snapshot and run.
    """
    listed = history(nights.directory / "graphs" / f"{graph}.yaml")
    (current,) = [each["snapshot"] for each in listed if each["current"]]
    return [(each["release"], each["snapshot"], each["run"]) for each in listed], current
