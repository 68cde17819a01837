from __future__ import annotations

import json
import os

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.speed import night
from benchmarks.speed.night import MODEL, Edges, Task
from pbg_tasks.errors import PbgError
from pbg_tasks.storage import open_store


def test_drawn_graph_follows_its_seed():
    one, same, other = Edges.drawn(3000), Edges.drawn(3000), Edges.drawn(3000, seed=1)
    assert np.array_equal(one.rhs, same.rhs)
    assert not np.array_equal(one.rhs, other.rhs)
    assert len(np.unique(one.lhs)) == 1000
    assert set(one.rel) == set(range(8))


def test_second_night_changes_two_percent():
    one = Edges.drawn(30_000)
    two = one.changed()
    moved = (one.lhs != two.lhs) | (one.rhs != two.rhs)
    assert 0.015 < moved.mean() <= 0.02
    assert (two.lhs > one.lhs.max()).sum() == 600 / 50


def test_snapshot_files_hold_every_edge(tmp_path):
    edges = Edges.drawn(3000)
    table = pq.read_table(edges.write(tmp_path / "d1"))
    assert table.column("lhs").to_pylist() == [f"n{number}" for number in edges.lhs]
    assert table.column("rhs").to_pylist() == [f"n{number}" for number in edges.rhs]


def test_command_cost_counts_its_process(tmp_path):
    store = open_store(str(tmp_path))
    for path in Edges.drawn(3000).write(tmp_path / "d1"):
        store.put(f"snapshots/d1/{path.name}", path)
    spec = tmp_path / "graph.json"
    place = {"location": f"{tmp_path}/snapshots/{{snapshot}}/*.parquet"}
    spec.write_text(json.dumps({"graph": "g", "store": str(tmp_path / "g"), "snapshots": place, "model": MODEL}))
    planned, cost = night._task(["plan", str(spec), "--snapshot", "d1"], tmp_path / "log", os.environ)
    assert planned["run"].startswith(str(tmp_path / "g"))
    assert cost.cpu > 0.1
    assert cost.memory > 5e7


def test_failing_command_names_its_error(tmp_path):
    with pytest.raises(PbgError, match=r"(?s)pbg plan .*missing\.yaml.*error"):
        night._task(["plan", str(tmp_path / "missing.yaml"), "--snapshot", "d1"], tmp_path / "log", os.environ)


def test_rows_give_the_share_of_training():
    rounds = []
    for cpu in (30, 8, 6):
        tasks = {"train": Task(10, 12, 5e8, 0, 3e6), "eval": Task(cpu, 9, 6e8, 1e6, 0)}
        rounds.append({"d1": tasks, "d2": tasks, "few tasks": {**tasks, "finish": tasks["eval"]}})
    rows = night._measurements(rounds, "")
    by_name = {row.name: row for row in rows}
    cold, warm = by_name["cold night of its training"], by_name["warm night of its training"]
    assert (cold.figure, cold.met, warm.met) == (1.8, True, False)
    assert cold.details["largest peak memory, bytes"] == 6e8
    assert (cold.details["least"], cold.details["largest"]) == (1.6, 4)
    assert "3 rounds" in cold.note
    assert by_name["warm night, eval"].details["bytes read"] == 1e6
    assert by_name["warm night, eval"].figure == 8
    few = by_name["warm night of its training, few tasks"]
    assert (few.figure, few.met) == (2.6, False)
    assert by_name["warm night, finish, few tasks"].figure == 8
    (alone, *_) = night._measurements(rounds[:1], ", S3")
    assert (alone.name, alone.figure, "one round" in alone.note) == ("cold night of its training, S3", 4, True)
