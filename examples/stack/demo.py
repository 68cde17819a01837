"""The demo: two nights of WordNet through the whole stack.

It is watched and summed up.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from examples.stack.airflow import REPOSITORY
from examples.stack.watch import Watch, progress_text
from pbg_tasks.progress import human_seconds

if TYPE_CHECKING:
    from pathlib import Path

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


def demo_graphs(directory: Path) -> Path:
    """Return a folder with the only graph that has data."""
    folder = directory.resolve() / "graphs"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(REPOSITORY / "examples" / "graphs" / "wordnet.yaml", folder / "wordnet.yaml")
    return folder


def headline(result: dict[str, Any]) -> dict[str, Any]:
    """Return the few figures of a demo that fit on a line.

    Each is where ``result.json`` has it, there with more digits and with all else.
    """
    return {
        "ok": result["ok"],
        "seconds": result["seconds"],
        "ui": result["ui"],
        "nights": [_figures(night) for night in result["nights"]],
    }


def _figures(night: Summary) -> dict[str, Any]:
    release: dict[str, Any] = {**(night["release"] or {})}
    filtered: dict[str, Any] = night["metrics"]["filtered"]
    return {
        "snapshot": night["snapshot"],
        "release": {"release": release.get("release")},
        "edges": {"train": night["edges"].get("train")},
        "metrics": {"filtered": {name: round(filtered[name], 4) for name in ("mrr", "hits10")}},
        "gate": {"passed": night["gate"].get("passed")},
    }


def farewell(result: dict[str, Any]) -> list[str]:
    """Return lines on what is there to look at."""
    login, last = result["ui"], result["nights"][-1]
    url = login["url"]
    run = quote(result["runs"][-1], safe="")
    looks = {
        f"{url}/plugin/pbg": "all graphs: release, age, quality",
        f"{url}/dags/{DAG}/plugin/pbg-nights": "the nights of WordNet, side by side",
        f"{url}/dags/{DAG}/runs/{run}/plugin/pbg-run": f"the night of {last['snapshot']}: tasks, loss, neighbours",
        f"{url}/dags/{DAG}": "the DAG: trigger a night of your own by its form",
        f"{url}/dags/drill_{DAG.partition('_')[2]}": "the daily rehearsal of a roll-back, paused until you start it",
    }
    width = max(map(len, looks))
    return [
        "What to look at next:",
        *(f"  {address.ljust(width)}  {what}" for address, what in looks.items()),
        f"user {login['username']}, password {login['password']}; all of it stays up until `make down`.",
    ]


def run_demo(stack: Stack) -> dict[str, Any]:
    """Embed two snapshots one after the other in a new stack.

    The services are left running.

    Returns:
        The contents of ``result.json``, of which the line ``RESULT`` has the ``headline``.

    Raises:
        DemoError: a step failed, or the directory has data of a user's graphs, which stay.
    """
    if stack.mark.exists():
        raise DemoError(
            f"{stack.directory}: has the data of the graphs in {stack.mark.read_text(encoding='utf-8').strip()}, which "
            "a demo would remove; name another directory, `python -m examples.stack demo --directory DIR`, or remove "
            f"{stack.directory} after `make down`"
        )
    from pbg_tasks.tasks.view.tables import table  # it imports much that watching does not need

    clock = Clock()
    if stopped := stack.stop():
        clock.report(f"stopped {stopped} processes of an earlier demo")
    stack.clear()
    environment = stack.start_store(BUCKET)
    clock.report(f"S3 server: {environment['AWS_ENDPOINT_URL']}, its data is in {stack.store.directory}")
    write_data(stack.airflow().environment(), clock)
    airflow = stack.start_airflow(clock.report)
    login = stack.login()
    clock.report(f"Airflow: {login['url']}  user {login['username']}  password {login['password']}  (watch it there)")
    wait_for_dag(airflow.api)
    if faults := airflow.api.plugin_errors():
        raise DemoError(f"Airflow cannot load the plugin: {faults[0]}")
    found = [embed(airflow.api, snapshot, clock) for snapshot in NIGHTS]
    nights, runs = [night for _, night in found], [run for run, _ in found]
    print(f"\n{table(nights)}\n", flush=True)
    return {"nights": nights, "runs": runs, "ui": login, "seconds": round(clock.seconds, 1), "ok": True}


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


def embed(api: AirflowApi, snapshot: str, clock: Clock) -> tuple[str, Summary]:
    """Run one night to its end; return Airflow's id and its summary.

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
    return run_id, summary
