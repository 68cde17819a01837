from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

import pytest
import typer

from benchmarks.speed import __main__ as speed
from benchmarks.speed.catalogue import BENCHMARKS, BY_NAME
from benchmarks.speed.environment import revision
from benchmarks.speed.measurement import Measurement
from benchmarks.speed.results import Results
from benchmarks.speed.runner import Runner
from benchmarks.speed.worker import ROOT
from pbg_tasks.errors import ResourceError


@dataclass
class Counting:
    """Benchmark that counts its runs."""

    name: str
    error: Exception | None = None
    runs: int = 0

    def rerun(self, *, quick):
        return f"make {quick}"

    def measure(self, tools, *, quick):
        assert not quick
        assert not list(tools.directory.iterdir())
        (tools.directory / "file").write_text("left behind")
        self.runs += 1
        if self.error is not None:
            raise self.error
        return [Measurement(self.name, "runs", self.runs)]


def runner(tmp_path):
    kept = []
    made = Runner(Results(), lambda found: kept.append(list(found.entries)), tmp_path, tmp_path)
    return made, kept


def test_failing_benchmark_is_reported_and_others_continue(tmp_path):
    found, kept = runner(tmp_path)
    found.run([Counting("one", ResourceError("no PBG here")), Counting("two")], again=False)
    assert found.failures == {"one": "ResourceError: no PBG here"}
    assert [entry["name"] for entry in found.results.entries] == ["two"]
    assert len(kept) == 1
    (entry,) = kept[0]
    assert entry["rerun"] == "make False"
    assert entry["revision"] == revision(ROOT)
    assert entry["environment"]["cores"] >= 1
    assert not (tmp_path / "runs" / "two").exists()


def test_measured_benchmark_is_repeated_on_request_only(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.1, 0.1))
    found, _ = runner(tmp_path)
    benchmark = Counting("one")
    found.run([benchmark], again=False)
    found.run([benchmark], again=False)
    assert benchmark.runs == 1
    found.run([benchmark], again=True)
    assert [entry["ours"] for entry in found.results.entries] == [2]


def test_figures_under_load_are_measured_again(tmp_path, monkeypatch):
    load = [1000.0]
    monkeypatch.setattr(os, "getloadavg", lambda: (load[0], 0.0, 0.0))
    found, _ = runner(tmp_path)
    benchmark = Counting("one")
    found.run([benchmark], again=False)
    load[0] = 0.1
    found.run([benchmark], again=False)
    assert benchmark.runs == 2
    found.results.entries[0]["environment"]["cpu"] = "another"
    found.run([benchmark], again=False)
    found.run([benchmark], again=False)
    assert benchmark.runs == 3


def test_benchmark_without_figures_keeps_earlier_ones(tmp_path, monkeypatch):
    """One for GPUs is also run where there are none."""
    found, kept = runner(tmp_path)
    benchmark = Counting("gpu")
    found.run([benchmark], again=True)
    monkeypatch.setattr(benchmark, "measure", lambda *_, **__: [])
    found.run([benchmark], again=True)
    assert not found.failures
    assert [entry["ours"] for entry in found.results.entries] == [1]
    assert len(kept) == 1
    assert not (tmp_path / "runs" / "gpu").exists()


def test_quick_run_replaces_no_longer_one(tmp_path, monkeypatch):
    """It has fewer rows, and the longer one takes hours."""
    monkeypatch.setattr(speed, "HOSTS", tmp_path)
    results = Results()
    common = {"revision": "abc", "environment": {}}
    results.replace("steps", [Measurement("FB step", "s", 1.0)], rerun='make bench ARGS="steps --again"', **common)
    results.replace("exporting", [Measurement("x", "s", 1.0)], rerun='make bench-quick ARGS="exporting"', **common)
    results.write(tmp_path / "amx.json")
    asked = {"names": None, "data": tmp_path, "race_epochs": 1, "racer": None, "edges": None, "again": True}
    with pytest.raises(typer.BadParameter, match=r"amx\.json has longer runs of steps: leave --host"):
        speed.main(**asked, quick=True, host="amx")
    assert Results.read(tmp_path / "amx.json") == results


def test_host_without_figures_leaves_the_page(tmp_path, monkeypatch):
    """Its first benchmark failed."""
    page = speed.DOCUMENT.read_text(encoding="utf-8")
    monkeypatch.setattr(speed, "HOSTS", shutil.copytree(speed.HOSTS, tmp_path / "hosts"))
    for name in ("DOCUMENT", "RATIOS", "GROWTH"):
        monkeypatch.setattr(speed, name, tmp_path / getattr(speed, name).name)
    monkeypatch.setattr(Runner, "run", lambda *_, **__: None)
    asked = {"names": ["race"], "data": tmp_path, "race_epochs": 1, "racer": None, "edges": None, "again": True}
    with pytest.raises(typer.Exit):
        speed.main(**asked, quick=False, host="new")
    assert Results.read(tmp_path / "hosts" / "new.json") == Results()
    assert speed.DOCUMENT.read_text(encoding="utf-8") == page


def test_quick_benchmarks_are_the_promised_ones():
    assert {each.name for each in BENCHMARKS if each.quick} == {"steps", "importing", "evaluating", "exporting"}
    assert BY_NAME["race"].apart
