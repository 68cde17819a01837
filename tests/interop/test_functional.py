"""Graphs, checkpoints and commands of PBG's own functional tests.

They run through the commands of this package.

The files are written as those tests write them: counts without a line break, no names, and checkpoints to start from
whose vectors are doubles and whose model file holds a version number alone. PBG evaluates what each training leaves.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from pbg_tasks.cli import app
from tests.interop.oracle import write_config

pytestmark = pytest.mark.interop

ENTITIES = 100
DIMENSION = 10
STATS_KEYS = {
    "lhs_partition", "rhs_partition", "index", "stats", "eval_stats_before", "eval_stats_after", "eval_stats_chunk_avg",
    "epoch_idx", "edge_path_idx", "edge_chunk_idx",
}  # fmt: skip
ITERATION_KEYS = {
    "num_epochs", "epoch_idx", "num_edge_paths", "edge_path_idx", "edge_path", "num_edge_chunks", "edge_chunk_idx"
}  # fmt: skip


class Graph:
    """A graph of entities connected where their random vectors have positive products.

    Args:
        root: directory for everything.
        entities: PBG's keys of each type.
        relations: name, left-hand and right-hand type of each.
        fractions: of the edges, one edge path for each.
        changes: other keys of the config.
    """

    def __init__(self, root, entities, relations, fractions, **changes):
        self.root, self._entities, self._relations = root, entities, relations
        self.document = {
            "dimension": DIMENSION,
            "entities": entities,
            "relations": [{"name": name, "lhs": lhs, "rhs": rhs} for name, lhs, rhs in relations],
            "entity_path": str(root / "entities"),
            "edge_paths": [str(root / f"edges-{number}") for number in range(len(fractions))],
            "checkpoint_path": str(root / "model"),
            "workers": 2,
        } | changes
        for place in (self.document["entity_path"], *self.document["edge_paths"]):
            Path(place).mkdir()
        rng = np.random.default_rng(0)
        self._vectors = {name: self._written_entities(name, keys, rng) for name, keys in entities.items()}
        grid = [max(len(self._vectors[relation[side]]) for relation in relations) for side in (1, 2)]
        for bucket in product(*map(range, grid)):
            self._write_bucket(bucket, fractions, rng)

    def _written_entities(self, name, keys, rng):
        owners = rng.integers(keys["num_partitions"], size=ENTITIES)
        parts = [rng.normal(size=(count, DIMENSION)) for count in np.bincount(owners, minlength=keys["num_partitions"])]
        for number, part in enumerate(parts):
            (self.root / "entities" / f"entity_count_{name}_{number}.txt").write_text(str(len(part)))
        return parts

    def _write_bucket(self, bucket, fractions, rng):
        edges = []
        for relation, (_, *types) in enumerate(self._relations):
            lhs, rhs = (
                self._vectors[name][part if len(self._vectors[name]) > 1 else 0]
                for name, part in zip(types, bucket, strict=True)
            )
            ends = np.argwhere(lhs @ rhs.T > 0)
            edges.append(np.column_stack([ends, np.full(len(ends), relation)]))
        shuffled = rng.permutation(np.concatenate(edges))
        stops = np.cumsum([int(fraction * len(shuffled)) for fraction in fractions])
        for path, piece in zip(self.document["edge_paths"], np.split(shuffled, stops), strict=False):
            with h5py.File(Path(path) / f"edges_{bucket[0]}_{bucket[1]}.h5", "x") as file:
                file.attrs["format_version"] = 1
                file["rel"] = piece[:, 2]
                for column, side in enumerate(("lhs", "rhs")):
                    self._write_side(file, side, piece[:, column], piece[:, 2])

    def _write_side(self, file, side, ids, relations):
        """Write one end of edges.

        The end of a featurized type is one feature, and its id is -1.
        """
        position = ("lhs", "rhs").index(side) + 1
        bags = np.array([self._entities[relation[position]].get("featurized", False) for relation in self._relations])
        featurized = bags[relations]
        if bags.any():
            file[f"{side}d_data"] = ids[featurized]
            file[f"{side}d_offsets"] = np.concatenate([[0], np.cumsum(featurized)])
        file[side] = np.where(featurized, -1, ids)

    def write_start(self, place, version=0, *, empty_group=False):
        """Write a checkpoint of random vectors without further facts."""
        directory = Path(place)
        directory.mkdir(exist_ok=True)
        (directory / "checkpoint_version.txt").write_text(str(version))
        rng = np.random.default_rng(1)
        for name, parts in self._vectors.items():
            for number, part in enumerate(parts):
                with h5py.File(directory / f"embeddings_{name}_{number}.v{version}.h5", "x") as file:
                    file.attrs["format_version"] = 1
                    file["embeddings"] = rng.normal(size=part.shape)
        with h5py.File(directory / f"model.v{version}.h5", "x") as file:
            file.attrs["format_version"] = 1
            if empty_group:
                file.create_group("model")

    def write_config(self, **changes):
        return str(write_config(self.root / "config.py", self.document | changes))

    def run(self, command, **changes):
        done = CliRunner().invoke(app, [command, self.write_config(**changes), "--json"], catch_exceptions=False)
        assert done.exit_code == 0
        return json.loads(done.stdout)

    def check_written(self, version):
        """Check a checkpoint as PBG's tests do: every file, attribute and key."""
        directory = Path(self.document["checkpoint_path"])
        assert int((directory / "checkpoint_version.txt").read_text()) == version
        config = json.loads((directory / "config.json").read_text())
        assert config["checkpoint_path"] == str(directory)
        with h5py.File(directory / f"model.v{version}.h5") as file:
            check_attributes(file, config)
            file["model"].visititems(check_parameter)
            check_optimizer(file)
        for name, parts in self._vectors.items():
            for number, part in enumerate(parts):
                with h5py.File(directory / f"embeddings_{name}_{number}.v{version}.h5") as file:
                    check_attributes(file, config)
                    assert file["embeddings"].dtype == np.float32
                    assert file["embeddings"].shape == part.shape
                    assert np.isfinite(file["embeddings"]).all()
                    assert np.linalg.norm(file["embeddings"], axis=1).all()
                    check_optimizer(file)
        lines = [json.loads(line) for line in (directory / "training_stats.json").read_text().splitlines()]
        assert lines
        for line in lines:
            assert line.keys() <= STATS_KEYS
            for key in line.keys() & {"stats", "eval_stats_before", "eval_stats_after", "eval_stats_chunk_avg"}:
                assert line[key].keys() == {"count", "metrics"}


def check_attributes(file, config):
    assert file.attrs["format_version"] == 1
    assert json.loads(file.attrs["config/json"]) == config
    assert {key.removeprefix("iteration/") for key in file.attrs if key.startswith("iteration/")} == ITERATION_KEYS


def check_parameter(name, item):
    if isinstance(item, h5py.Dataset):
        assert "state_dict_key" in item.attrs, name
        assert np.isfinite(item).all(), name


def check_optimizer(file):
    assert file["optimizer/state_dict"].dtype == np.dtype("V1")
    assert file["optimizer/state_dict"].ndim == 1


ONE = {"e": {"num_partitions": 1}}
FOUR = {"e": {"num_partitions": 4}}
RING = [("r", "e", "e")]


def all_negatives(graph):
    return {"relations": [relation | {"all_negs": True} for relation in graph.document["relations"]]}


def check_evaluated(graph, oracle, **changes):
    """Evaluate the second edge path with both programs."""
    changes |= {"edge_paths": graph.document["edge_paths"][1:]}
    theirs = oracle.evaluate(graph.document | changes)
    assert graph.run("eval", **changes)["edges"] == theirs["count"]


def train_first(graph):
    return graph.run("train", edge_paths=graph.document["edge_paths"][:1])


def test_default_graph_is_trained_and_evaluated(tmp_path, oracle):
    graph = Graph(tmp_path, ONE, RING, [0.4, 0.2])
    train_first(graph)
    graph.check_written(1)
    check_evaluated(graph, oracle, **all_negatives(graph))


@pytest.mark.parametrize("empty_group", [False, True])
def test_vectors_of_a_version_alone_are_resumed(tmp_path, oracle, empty_group):
    graph = Graph(tmp_path, ONE, RING, [0.4, 0.4], num_epochs=2, num_edge_chunks=2)
    graph.write_start(graph.document["checkpoint_path"], version=7, empty_group=empty_group)
    assert graph.run("eval")["version"] == 7
    assert graph.run("train")["version"] == 8
    graph.check_written(8)
    assert not (tmp_path / "model" / "model.v6.h5").exists()
    check_evaluated(graph, oracle)


@pytest.mark.parametrize("empty_group", [False, True])
def test_vectors_of_init_path_alone_are_the_start(tmp_path, empty_group):
    graph = Graph(tmp_path, ONE, RING, [0.4], init_path=str(tmp_path / "init"))
    graph.write_start(tmp_path / "init", empty_group=empty_group)
    graph.run("train")
    graph.check_written(1)


def test_featurized_types_of_pbgs_test_are_trained(tmp_path, oracle):
    entities = {"e1": {"num_partitions": 1, "featurized": True}, "e2": {"num_partitions": 1}}
    graph = Graph(tmp_path, entities, [("r1", "e1", "e2"), ("r2", "e2", "e1")], [0.4, 0.2])
    train_first(graph)
    graph.check_written(1)
    changes = {"edge_paths": graph.document["edge_paths"][1:]}
    arguments = ["eval", graph.write_config(**changes), "--negatives", "config", "--json"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert json.loads(done.stdout)["edges"] == oracle.evaluate(graph.document | changes)["count"]


def test_unequal_partitions_of_pbgs_test_are_evaluated(tmp_path, oracle):
    entities = {f"e{count}": {"num_partitions": count} for count in (1, 2, 3)}
    graph = Graph(tmp_path, entities, [("r1", "e1", "e3"), ("r2", "e2", "e3"), ("r3", "e2", "e1")], [0.4, 0.2])
    train_first(graph)
    graph.check_written(1)
    check_evaluated(graph, oracle)


def test_dynamic_relations_of_pbgs_test_are_evaluated(tmp_path, oracle):
    entities = {"el": {"num_partitions": 1}, "er": {"num_partitions": 1}}
    graph = Graph(tmp_path, entities, [(f"r{number}", "el", "er") for number in range(10)], [0.04, 0.02])
    relation = {"name": "r", "lhs": "el", "rhs": "er"}
    graph.document |= {"relations": [relation], "dynamic_relations": True, "global_emb": False}
    (tmp_path / "entities" / "dynamic_rel_count.txt").write_text("10")
    train_first(graph)
    graph.check_written(1)
    check_evaluated(graph, oracle, **all_negatives(graph))


@pytest.mark.parametrize("servers", [-1, 1])
def test_two_ranks_of_a_sync_file_train(tmp_path, oracle, servers):
    graph = Graph(
        tmp_path, FOUR, RING, [0.4], num_machines=2, num_partition_servers=servers, workers=1,
        distributed_init_method=f"file://{tmp_path / 'sync'}",
    )  # fmt: skip
    graph.document["relations"][0]["operator"] = "linear"
    config = graph.write_config()
    ranks = [("train", rank) for rank in range(2)] + [("partition-server", rank) for rank in range(max(servers, 0))]
    commands = [[sys.executable, "-m", "pbg_tasks", name, config, "--rank", str(rank)] for name, rank in ranks]
    started = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for command in commands]
    try:
        for process in started:
            _, said = process.communicate(timeout=240)
            assert process.returncode == 0, said.decode()
    finally:
        for process in started:
            process.kill()
            process.wait()
    graph.check_written(1)
    alone = {"num_machines": 1, "num_partition_servers": -1, "distributed_init_method": None}
    assert oracle.evaluate(graph.document | alone)["count"] > 0
