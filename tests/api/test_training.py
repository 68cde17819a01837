"""Training from edges in memory to a model.

It uses the preparation and training of the commands.
"""

from __future__ import annotations

import gc
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from pbg_tasks.api import Model, train
from pbg_tasks.api.edges import edge_table
from pbg_tasks.api.presets import model_keys
from pbg_tasks.errors import ConfigError, InputError
from pbg_tasks.formats.edges import read_edges

SMALL = {"dimension": 16, "num_epochs": 2, "num_uniform_negs": 20, "batch_size": 100, "workers": 1}


pytestmark = pytest.mark.usefixtures("scratch")


def ring(count=60):
    return [(f"e{i}", name, f"e{(i + step) % count}") for i in range(count) for step, name in ((1, "next"), (7, "far"))]


def test_graph_is_learned_and_files_end_with_model(tmp_path):
    model = train(ring(), **SMALL | {"num_epochs": 40, "dimension": 32})
    assert model.relations == ("far", "next")
    assert model.config.dynamic_relations
    found = model.top_k([f"e{i}" for i in range(60)], "next", k=1)
    right = sum(answer.name == f"e{(i + 1) % 60}" for i, (answer,) in enumerate(found))
    assert right > 50
    assert len(list((tmp_path / "scratch").iterdir())) == 2
    del model
    gc.collect()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_result_is_a_plain_directory(tmp_path):
    edges = np.random.default_rng(0).integers(0, 40, (300, 2))
    with train(edges, out=tmp_path / "out", entity_types={"user": {"num_partitions": 2}}, **SMALL) as model:
        names, found = model.entities(), model.neighbors(7, 3)
        assert sorted(names, key=int) == [str(i) for i in np.unique(edges)]
        assert model.relations == ("edge",)
    out = tmp_path / "out"
    config = json.loads((out / "checkpoint" / "config.json").read_text())
    assert config["relations"][0]["operator"] == "none"
    assert (out / "checkpoint" / "checkpoint_version.txt").read_text() == "2\n"
    counts = [int((out / "entities" / f"entity_count_user_{part}.txt").read_text()) for part in range(2)]
    ids = {name: (part, i) for part in range(2) for i, name in enumerate(names[part * counts[0] :][: counts[part]])}
    written = []
    for left in range(2):
        for right in range(2):
            bucket = read_edges(out / "edges" / f"edges_{left}_{right}.h5")
            written += [((left, i), (right, j)) for i, j in zip(bucket.lhs, bucket.rhs, strict=True)]
    assert sorted(written) == sorted((ids[str(i)], ids[str(j)]) for i, j in edges)
    with Model.open(out / "checkpoint") as model:
        assert model.neighbors("7", 3) == found
    with pytest.raises(ConfigError, match="is not empty"):
        train(edges, out=out, **SMALL)


def test_same_seed_gives_the_same_bits():
    def trained(seed):
        with train(ring(), seed=seed, **SMALL) as model:
            return model.embedding("e3")

    np.testing.assert_array_equal(trained(1), trained(1))
    assert (trained(1) != trained(2)).any()


@pytest.mark.s3
def test_model_is_trained_into_s3(s3_bucket):
    with train(ring(), out=f"{s3_bucket}/mine", **SMALL) as model:
        assert model.url == f"{s3_bucket}/mine/checkpoint"
        expected = model.top_k("e1", "far")
    with Model.open(f"{s3_bucket}/mine/checkpoint") as again:
        assert again.top_k("e1", "far") == expected


def test_types_and_weights_are_used():
    table = pa.table(
        {
            "lhs": ["ann", "bob", "ann", "x"],
            "rel": ["bought", "bought", "knows", "like"],
            "rhs": ["x", "ann", "bob", "y"],
            "weight": [1, 2, 0.5, 3],
            "lhs_type": ["user", "user", "user", "item"],
            "rhs_type": ["item", "user", "user", "item"],
        }
    )
    with train(table, **SMALL) as model:
        listed = [(relation.name, relation.lhs, relation.rhs) for relation in model.config.relations]
        assert listed == [("bought", "user", "item"), ("bought", "user", "user"), *listed[2:]]
        assert listed[2:] == [("knows", "user", "user"), ("like", "item", "item")]
        assert sorted(model.entities("item")) == ["x", "y"]
        edges = read_edges(Path(model.url).parent / "edges" / "edges_0_0.h5")
        assert sorted(zip(edges.rel.tolist(), edges.weight.tolist(), strict=True)) == [
            (0, 1.0), (1, 2.0), (2, 0.5), (3, 3.0),
        ]  # fmt: skip


def test_two_types_name_left_and_right_ends():
    with train([("1", "2"), ("2", "1"), ("3", "2")], entity_types=["user", "item"], **SMALL) as model:
        assert sorted(model.entities("user")) == ["1", "2", "3"]
        assert sorted(model.entities("item")) == ["1", "2"]


def test_relations_may_be_listed():
    relations = ["next", {"name": "far", "operator": "translation", "weight": 2.0}]
    with train(ring(), relations=relations, operator="diagonal", **SMALL) as model:
        assert model.relations == ("next", "far")
        found = [(relation.operator, relation.weight) for relation in model.config.relations]
        assert found == [("diagonal", 1.0), ("translation", 2.0)]


@pytest.mark.parametrize(
    ("edges", "keys", "error", "message"),
    [
        (ring(), {"num_epoch": 3}, ConfigError, "unknown key 'num_epoch'; did you mean 'num_epochs'"),
        (ring(), {"dimension": 15}, ConfigError, "complex_diagonal needs an even dimension"),
        (ring(), {"checkpoint_path": "x"}, ConfigError, "checkpoint_path follow from out"),
        (ring(), {"relations": ["next", "fa"]}, InputError, "^edges, row 2: unknown relation 'far'"),
        (ring(), {"entity_types": {"bag": {"featurized": True}}}, ConfigError, "bag.featurized"),
        (ring(), {"entity_types": ["a", "b", "c"]}, ConfigError, "3 types need the columns lhs_type and rhs_type"),
        ([("a", "")], {}, InputError, "^edges, row 1: empty id in column rhs"),
        (([1], ["r"], [2], [-1.0]), {}, InputError, "weight that is not a finite number"),
        ([], {}, InputError, "^edges: there are none to train on$"),
        ([()], {}, InputError, "a list of edges holds tuples"),
        (np.empty((0, 2), int), {}, InputError, "^edges: there are none to train on$"),
        (
            {"lhs": ["a"], "rhs": ["b"], "lhs_type": ["t"], "rhs_type": ["u"]},
            {"entity_types": ["t"]},
            ConfigError,
            "the edges also have 'u'",
        ),
    ],
)
def test_wrong_input_raises_before_anything_is_written(tmp_path, edges, keys, error, message):
    with pytest.raises(error, match=message):
        train(edges, out=tmp_path / "out", **SMALL | keys)
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "scratch").glob("*"))


@pytest.mark.parametrize(
    ("edges", "keys", "expected"),
    [
        ([("a", "r", "b")], {}, True),
        ([("a", "b")], {}, None),
        ({"lhs": ["a"], "rel": ["r"], "rhs": ["b"], "lhs_type": ["x"], "rhs_type": ["y"]}, {}, None),
        ([("a", "r", "b")], {"entity_types": {"e": {"featurized": True}}}, None),
        ([("a", "r", "b")], {"relations": [{"name": "r", "all_negs": True}]}, None),
    ],
)
def test_presets_take_self_negatives_where_they_help(edges, keys, expected):
    given = {"relations": None, "entity_types": None, "operator": None} | keys
    assert model_keys(edge_table(edges), **given).get("self_negatives") is expected


def test_threads_of_torch_stay_the_callers():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with train(ring(), **SMALL):
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_any_number_of_batch_negatives_fits_the_presets():
    with train([("a", "r", "b"), ("b", "r", "c")], dimension=4, num_batch_negs=40, num_epochs=1, workers=1) as model:
        assert len(model.relations) == 1
