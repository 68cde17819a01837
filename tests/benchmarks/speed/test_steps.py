from __future__ import annotations

from types import SimpleNamespace

from benchmarks.speed import steps


def test_both_sides_train_equal_edges_with_workers(tmp_path, monkeypatch):
    races = []
    monkeypatch.setattr(steps, "fb15k", lambda *_: {})
    monkeypatch.setattr(steps, "available", lambda _: ["native"])
    monkeypatch.setattr(steps.RandomGraph, "write", lambda *_: {})
    monkeypatch.setattr(steps, "_one_worker", lambda *_: [])
    monkeypatch.setattr(steps, "_two_workers", lambda _, race: races.append(race) or [])
    steps.measure(SimpleNamespace(fb15k=lambda: tmp_path, directory=tmp_path), quick=False)
    first, _ = races
    assert first.workload == "FB"
    assert first.ours == first.theirs
