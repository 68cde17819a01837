"""``train`` on a machine that is too small for it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pbg_tasks.errors import ResourceError
from pbg_tasks.memory import machine
from pbg_tasks.progress import human_count
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import run_task
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.training.train import train
from tests.tasks.conftest import ring


@pytest.fixture
def small_machine(tmp_path, monkeypatch):
    """Linux with 100 MB left."""
    directory = tmp_path / "proc"
    directory.mkdir()
    (directory / "meminfo").write_text("MemAvailable:     100000 kB\n")
    monkeypatch.setattr(machine, "PROC", directory)


def test_too_large_training_is_refused_unless_forced(place, small_machine, capsys):
    place.snapshot("d1", ring(50))
    url = plan(place.spec, "d1")["run"]
    for task in ("validate", "partition", "bucket"):
        run_task(task, url)
    with pytest.raises(ResourceError, match=r"train would take \d+ MB of memory .* where 102 MB may be used; change "):
        train(url)
    run = RunContext.open(url)
    assert run.result("train") is None
    assert not list((place.store / "runs" / run.run_id / "checkpoint").glob("embeddings*"))

    result = train(url, ignore_memory=True)
    assert "warning: train would take" in capsys.readouterr().err
    assert result["edges_trained"] > 0
    assert result["memory"]["measured_peak"] > 0


def test_forecast_is_reported_and_kept_beside_measured_peak(place, capsys):
    place.snapshot("d1", ring(50))
    url = plan(place.spec, "d1")["run"]
    lines = capsys.readouterr().err.splitlines()
    (memory,) = [line for line in lines if "plan: memory at most, in a process each: train " in line]
    assert re.search(r"; preparation about \d+ MB$", memory)  # of this graph, not all of resources.memory_gb
    assert not [line for line in lines if "peak of" in line]  # a small graph fills no page
    assert len(lines) < 12
    place.write_spec(resources={"memory_gb": 0.3})
    plan(place.spec, "d1")
    assert "peak of train" in capsys.readouterr().err
    place.write_spec()
    for task in ("validate", "partition", "bucket"):
        run_task(task, url)
    memory = train(url)["memory"]
    told = re.search(r"train: needs up to (.+)B of memory \((.+)B of them the process", capsys.readouterr().err)
    assert told[1] == human_count(memory["peak"])
    assert told[2] == human_count(memory["lines"]["process"])
    assert memory["peak"] == sum(memory["lines"].values())
    assert memory["measured_peak"] > 0


def test_planned_process_is_one_that_trains(place):
    """A pod gets the memory that was planned, before its process begins."""
    place.snapshot("d1", ring(50))
    url = plan(place.spec, "d1")["run"]
    for task in ("validate", "partition", "bucket"):
        run_task(task, url)
    call = [sys.executable, "-m", "pbg_tasks", "train", url, "--json"]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    planned = json.loads((Path(url) / "results" / "plan.json").read_text())["memory"]["train"]["lines"]["process"]
    assert json.loads(done.stdout)["memory"]["lines"]["process"] < 1.05 * planned
