from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.speed.usage import cpu_seconds, tree
from benchmarks.speed.worker import Worker
from pbg_tasks.errors import PbgError
from tests.benchmarks.speed.subject import BURN

PLACE = "tests.benchmarks.speed.subject:Subject"


def worker(tmp_path, place=PLACE, **arguments):
    return Worker(Path(sys.executable), place, arguments, tmp_path / "worker.log", {})


def test_methods_are_called_in_separate_process(tmp_path):
    with worker(tmp_path, start=5) as subject:
        assert subject("add", number=2).value == 7
        assert subject("add", number=3).value == 10
    assert "printed" in (tmp_path / "worker.log").read_text()


def test_children_and_own_peak_are_counted(tmp_path):
    with worker(tmp_path) as subject:
        idle, busy = subject("add", number=1), subject("burn", seconds=0.3)
        taken = subject("take", mebibytes=100)
    assert idle.cpu <= 0.05
    assert 0.55 <= busy.cpu < 1.2
    assert busy.wall >= busy.cpu * 0.9
    assert 90 << 20 < taken.peak - busy.peak < 130 << 20


def test_error_in_worker_is_raised_and_worker_continues(tmp_path):
    with worker(tmp_path) as subject:
        with pytest.raises(PbgError, match=r"fail: ValueError: not today"):
            subject("fail")
        assert subject("add", number=1).value == 1


def test_last_output_of_ended_process_is_reported(tmp_path):
    with worker(tmp_path) as subject, pytest.raises(PbgError, match=r"die: the process ended: last words"):
        subject("die")


def test_failing_constructor_is_reported(tmp_path):
    with pytest.raises(PbgError, match=r"make: AttributeError.*Nobody"), worker(tmp_path, f"{PLACE[:-7]}Nobody"):
        pass


def test_cpu_seconds_include_living_descendants():
    command = [sys.executable, "-c", f"{BURN.format(0.3)}\nprint(flush=True)\ninput()"]
    before = cpu_seconds(os.getpid())
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert child.pid in tree(os.getpid())
        alive = cpu_seconds(os.getpid())
        child.communicate(b"\n")
    assert alive - before > 0.25
    assert cpu_seconds(os.getpid()) >= alive - 2 / os.sysconf(
        "SC_CLK_TCK"
    )  # those of ended processes are counted in ticks
    assert child.pid not in tree(os.getpid())


def test_work_below_a_clock_tick_takes_time():
    before, began = cpu_seconds(os.getpid()), time.thread_time()
    while time.thread_time() - began < 0.002:
        pass
    assert 0.002 <= cpu_seconds(os.getpid()) - before < 0.5
