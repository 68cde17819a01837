"""The benchmark of preparation on DuckDB and Spark, without Spark."""

from __future__ import annotations

import json
import subprocess
import sys

import duckdb
import pytest

from benchmarks.engines.__main__ import FILES, write_snapshot
from benchmarks.engines.family import run
from benchmarks.engines.largest import Largest, largest_tasks

WORK = "end = time.process_time() + .3\nwhile time.process_time() < end: pass"
ORPHANED = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", '''import time\\n{WORK}'''])
"""
MEASURED = """
import os, pathlib, sys
from benchmarks.engines.family import adopt, run
adopt()
usage = run([sys.executable, "-c", sys.argv[1]], os.environ, pathlib.Path(os.devnull))
print(usage.cpu, usage.wall, max(usage.peaks.values()))
"""


def test_orphan_of_command_counts_its_time():
    """As Java does that a command has started and left."""
    done = subprocess.run([sys.executable, "-c", MEASURED, ORPHANED], capture_output=True, text=True, check=True)
    cpu, wall, peak = map(float, done.stdout.split())
    assert cpu >= 0.3
    assert wall >= 0.3
    assert peak > 4e6  # of the interpreter


def test_failed_command_is_shown_with_its_output(tmp_path):
    command = [sys.executable, "-c", "print('no such table'); raise SystemExit(3)"]
    with pytest.raises(RuntimeError, match=r"exit status 3\nno such table"):
        run(command, {}, tmp_path / "log")


@pytest.mark.parametrize(("names", "distinct"), [(0, (1, 440)), (2000, (2000, 2000)), (10, (10, 10))])
def test_snapshot_has_as_many_edges_and_names(tmp_path, names, distinct):
    write_snapshot(tmp_path / "day", 1000, names)
    files = f"{tmp_path}/day/*.parquet"
    with duckdb.connect() as connection:
        rows = f"SELECT lhs AS name FROM '{files}' UNION ALL SELECT rhs FROM '{files}'"
        count, found = connection.execute(f"SELECT count(*), count(DISTINCT name) FROM ({rows})").fetchone()
    assert count == 2000
    assert distinct[0] <= found <= distinct[1]
    assert len(list((tmp_path / "day").iterdir())) == FILES


def stage(number, *scopes):
    scopes = [json.dumps({"id": "1", "name": scope}, separators=(",", ":")) for scope in scopes]
    info = {"Stage ID": number, "RDD Info": [{"Scope": scope} for scope in scopes]}
    return {"Event": "SparkListenerStageCompleted", "Stage Info": info}


def task(number, rows, size, spilled=0):
    read = {"Total Records Read": rows, "Remote Bytes Read": size // 2, "Local Bytes Read": size - size // 2}
    metrics = {"Disk Bytes Spilled": spilled, "Shuffle Read Metrics": read}
    return {"Event": "SparkListenerTaskEnd", "Stage ID": number, "Task Metrics": metrics}


def test_largest_task_of_each_kind_is_found(tmp_path):
    """Stages have the same numbers in each application."""
    first = [stage(0, "Scan"), stage(1, "Window"), stage(2, "Window", "MapInArrow")]
    first += [task(0, 0, 0), task(1, 10, 100), task(1, 30, 50, 7), task(2, 5, 20)]
    second = [stage(0, "Window"), *[task(0, 20, 400)] * 3]
    for number, events in enumerate((first, second)):
        folder = tmp_path / f"eventlog_v2_{number}"
        folder.mkdir()
        (folder / f"events_1_{number}").write_text("".join(json.dumps(event) + "\n" for event in events))
        (folder / f"appstatus_{number}").write_text("")
    assert largest_tasks(tmp_path) == [Largest("window", 3, 30, 400, 7), Largest("window, Python", 1, 5, 20, 0)]
