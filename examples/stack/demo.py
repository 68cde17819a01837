"""The demo: two nights of WordNet through the whole stack.

It is watched and summed up.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from examples.stack.watch import Watch, progress_text
from pbg_tasks.progress import human_seconds

if TYPE_CHECKING:
    from examples.stack.api import AirflowApi
    from examples.stack.stack import Stack
    from pbg_tasks.tasks.view.summary import Summary

BUCKET = "pbg-demo"
DAG = "reembed_wordnet"
NIGHTS = ("wordnet-3.0", "wordnet-3.1")
DAG_SECONDS = 90.0
NIGHT_SECONDS = 1800.0


class DemoError(RuntimeError):
    """The demo cannot go on.

    The message has the failed step and its last output.
    """


class Clock:
    """Prints lines with the time since its creation."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the clock was made."""
        return time.monotonic() - self._started

    def report(self, text: str) -> None:
        """Print one line."""
        print(f"{human_seconds(self.seconds):>6}  {text}", flush=True)


def run_demo(stack: Stack) -> dict[str, Any]:
    """Embed two snapshots one after the other in a new stack.

    The services are left running.

    Returns:
        The contents of the line ``RESULT``.

    Raises:
        DemoError: a step failed.
    """
    from pbg_tasks.tasks.view.tables import table  # it imports much that watching does not need

    clock = Clock()
    if stopped := stack.stop():
        clock.report(f"stopped {stopped} processes of an earlier demo")
    stack.clear()
    environment = stack.start_store(BUCKET)
    clock.report(f"S3 server: {environment['AWS_ENDPOINT_URL']}, its data is in {stack.store.directory}")
    write_data(stack.airflow().environment(), clock)
    airflow = stack.start_airflow(clock.report)
    clock.report(f"Airflow: {airflow.settings.url}")
    wait_for_dag(airflow.api)
    nights = [embed(airflow.api, snapshot, clock) for snapshot in NIGHTS]
    print(f"\n{table(nights)}\n", flush=True)
    return {"nights": nights, "ui": stack.login(), "seconds": round(clock.seconds, 1), "ok": True}


def write_data(environment: dict[str, str], clock: Clock) -> None:
    """Write both snapshots into the bucket.

    Raises:
        DemoError: that failed.
    """
    call = [sys.executable, "-m", "pbg_tasks", "datasets", "wordnet", f"s3://{BUCKET}/snapshots/wordnet"]
    clock.report(" ".join(["pbg", *call[3:]]))
    last = ""
    with subprocess.Popen(call, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        for line in run.stderr or ():
            last = line.rstrip()
            clock.report(f"data  {progress_text(last) or last}")
    if run.returncode != 0:
        raise DemoError(f"`pbg datasets wordnet` ended with status {run.returncode}: {last}")


def wait_for_dag(api: AirflowApi) -> None:
    """Wait until Airflow has read the graph spec.

    Raises:
        DemoError: it could not, or took too long.
    """
    deadline = time.monotonic() + DAG_SECONDS
    while DAG not in api.dag_ids():
        if errors := api.import_errors():
            raise DemoError(f"Airflow cannot read the DAGs: {errors[0]}")
        if time.monotonic() > deadline:
            raise DemoError(f"Airflow knows no DAG {DAG} after {DAG_SECONDS:.0f} s")
        time.sleep(0.5)


def embed(api: AirflowApi, snapshot: str, clock: Clock) -> Summary:
    """Run one night to its end; return its summary.

    Raises:
        DemoError: a task failed, or the night was not published.
    """
    run_id = api.trigger(DAG, partition_key=snapshot)
    clock.report(f"{snapshot}  run {run_id}")
    watch = Watch(api, DAG, run_id, label=snapshot, report=clock.report)
    state = watch.until_finished(NIGHT_SECONDS)
    if state != "success":
        raise DemoError("\n".join([f"{snapshot} ended as {state}", *watch.errors()]))
    summary: Summary = api.result(DAG, run_id, "summary")
    release = summary["release"]
    if not release or not release["published"]:
        raise DemoError(f"{snapshot} ended well, yet no release of it is current: {release}")
    return summary
