"""Whole trainings with ``self_negatives``, and evaluations with ``exclude_self``."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from pbg_tasks.api import Model
from pbg_tasks.errors import ConfigError
from pbg_tasks.formats.edges import EdgeList, edge_file_name, read_edges, write_edges
from pbg_tasks.formats.model import read_model
from pbg_tasks.tasks.directory.evaluate import evaluate_directory
from pbg_tasks.tasks.training.train import train_directory
from tests.directories import DataSet
from tests.kill_ranks import Graph


@pytest.fixture
def data(tmp_path):
    """A ring in two partitions, of which relation 1 has three loops."""
    made = DataSet(tmp_path)
    path = made.edges / edge_file_name(1, 1)
    edges, ends = read_edges(path), np.array([4, 5, 6])
    columns = ((edges.lhs, ends), (edges.rhs, ends), (edges.rel, np.ones(3, np.int64)))
    write_edges(path, EdgeList(*map(np.concatenate, columns)))
    return made


def trained(data, checkpoint, *, engine="auto", **keys):
    config = data.config(checkpoint, **keys)
    train_directory(config, engine=engine)
    return config, data.embeddings(config, 2)


def test_model_records_which_relations_have_loops(data):
    for wanted in (False, True):
        trained(data, f"m{wanted}", self_negatives=wanted)
        assert read_model(data.root / f"m{wanted}" / "model.v2.h5").loops.tolist() == [1]


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_same_seed_gives_same_bits(data, engine):
    first, second = (trained(data, name, engine=engine, self_negatives=True)[1] for name in ("one", "two"))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, trained(data, "without", engine=engine)[1])


def test_known_end_is_no_answer_of_model(data):
    config, _ = trained(data, "model")
    with Model.open(config.checkpoint_path) as model:
        asked = model.entities()[:10]
        for relation, left_out in (("next", True), ("skip", False)):
            answers = model.top_k(asked, relation, k=60)
            assert all(
                (own in {each.name for each in listed}) != left_out for own, listed in zip(asked, answers, strict=True)
            )


def test_filtered_figures_leave_the_known_end_out(data):
    config, _ = trained(data, "model")
    plain, without = (evaluate_directory(config, filtered=True, exclude_self=wanted) for wanted in (False, True))
    assert without["raw"] == plain["raw"]
    assert without["filtered"]["mrr"] > plain["filtered"]["mrr"]
    by_relation = [found["relations"] for found in (plain, without)]
    assert by_relation[1]["next"] != by_relation[0]["next"]
    assert by_relation[1]["skip"] == by_relation[0]["skip"]


def test_exclude_self_without_filtered_figures_is_refused(data):
    with pytest.raises(ConfigError, match="exclude_self changes the filtered figures alone: give --filtered"):
        evaluate_directory(data.config(), exclude_self=True)


@pytest.mark.rotated(3)
def test_ranks_of_a_gang_agree_on_loops(tmp_path):
    graph = Graph.random(tmp_path / "graph", epochs=1, edges=2_000, rows=200)
    graph.configure(
        entities={"n": {"num_partitions": 4}},
        relations=[{"name": name, "lhs": "n", "rhs": "n", "operator": "translation"} for name in ("r", "s")],
        dimension=8,
        self_negatives=True,
    )
    command = [sys.executable, "-m", "pbg_tasks", "train", str(graph.config), "--json", "--ranks", "2"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    assert graph.check() == ((graph.total,), ())
    assert read_model(graph.checkpoint / "model.v1.h5").loops.tolist() == [0]
