"""``self_negatives``: an edge's known end is one more negative.

Loops are excepted, and relations that have some.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from pbg_tasks.config import ConfigSchema, ModelConfig
from pbg_tasks.config.base import parse
from pbg_tasks.errors import ConfigError, FormatError
from pbg_tasks.formats.edges import EdgeFileWriter, EdgeList, edge_file_name
from pbg_tasks.model.families import Families
from pbg_tasks.training.data.edge_files import FiledEdges
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine import self_negatives
from pbg_tasks.training.engine.device import Accelerator
from pbg_tasks.training.engine.held_out import evaluation_config
from pbg_tasks.training.engine.lookup import Single
from pbg_tasks.training.engine.native import NativeEngine
from pbg_tasks.training.engine.on_device import DeviceEngine
from pbg_tasks.training.engine.on_torch import TorchEngine
from pbg_tasks.training.engine.self_negatives import relations_with_loops
from tests.model.configs import one_type
from tests.rotation import of_today
from tests.training.native_steps import native
from tests.training.steps import COMBINATIONS, Case, Draws, assert_equal, assert_same_step, make_config, regularized

FEATURE = "self_negatives"
MANY = {"a": 400, "b": 9}  # so that hardly an end is also drawn as a negative: a distance of 0 is known to few digits


def on_device(config, relation_count, **how):
    return DeviceEngine(config, relation_count, place=Accelerator(torch.device("cpu")), **how)


@pytest.fixture(params=["torch", "device", pytest.param("native", marks=native)])
def engine(request):
    """Engine, bound of its error and type that it computes in."""
    if request.param == "native":
        return NativeEngine, 1e-5, torch.float32
    return {"torch": TorchEngine, "device": on_device}[request.param], 1e-9, torch.float64


def assert_same(engine, config, **how):
    make, bound, dtype = engine
    case = Case(config, make_engine=make, **how)
    assert_same_step(case, bound=bound, dtype=dtype)
    return case


@pytest.mark.parametrize(("mode", "operator", "comparator", "loss"), of_today(COMBINATIONS, days=6))
def test_gradients_are_those_of_autograd(engine, mode, operator, comparator, loss):
    assert_same(engine, make_config(mode, operator, comparator, loss, FEATURE), counts=MANY)


@pytest.mark.parametrize("mode", ["standard", "dynamic"])
@pytest.mark.parametrize("keys", [{"bias": True}, {"max_norm": 0.8}, {"num_uniform_negs": 0}, {"num_batch_negs": 0}])
@pytest.mark.parametrize(
    ("operator", "comparator", "loss"), [("affine", "cos", "logistic"), ("diagonal", "l2", "softmax")]
)
def test_other_keys_keep_the_gradients(engine, mode, keys, operator, comparator, loss):
    config = regularized(make_config(mode, operator, comparator, loss, FEATURE, **keys), "N3")
    assert_same(engine, config, counts=MANY, weighted=True)


@pytest.mark.parametrize("loops", [(1,), (0, 1, 2)])
@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_relations_with_loops_have_none(engine, loops, loss):
    assert_same(engine, make_config("dynamic", "complex_diagonal", "dot", loss, FEATURE), loops=loops)


def scores_of(case, dtype):
    seen = {}
    case.step(lambda side, _, negative_BK: seen.update({side: negative_BK.clone()}), dtype)
    return seen


@pytest.mark.parametrize("mode", ["standard", "dynamic"])
def test_last_column_is_masked_exactly_there(engine, mode):
    make, _, dtype = engine
    config = make_config(mode, "translation", "dot", "softmax", FEATURE)
    loops = (1,) if mode == "dynamic" else ()
    case = Case(config, make_engine=make, loops=loops, seed=1)
    lhs, rhs = case.batch.lhs.rows_M, case.batch.rhs.rows_M
    expected = lhs == rhs
    assert expected.any()
    if mode == "dynamic":
        expected |= case.batch.rel == 1
    for scores in scores_of(case, dtype).values():
        assert scores.shape[1] == 5 + 4 + 1
        assert torch.equal(scores[:, -1] == -1e9, expected)


@pytest.mark.parametrize(("feature", "keys"), [(None, {}), ("one_type", {}), ("all_negs", {})])
def test_without_it_there_is_no_column(engine, feature, keys):
    make, _, dtype = engine
    config = make_config("dynamic", "none", "dot", "softmax", feature, **keys)
    case = Case(config, make_engine=make)
    for side, scores in scores_of(case, dtype).items():
        assert scores.shape[1] == (len(case.state.embeddings[case.types[side]]) if feature == "all_negs" else 5 + 4)


def mixed_config(**changes):
    """Return a config with relations of one and two types.

    It also has ``all_negs``.
    """
    relations = [
        {"name": "same", "lhs": "a", "rhs": "a"},
        {"name": "other", "lhs": "a", "rhs": "b"},
        {"name": "all", "lhs": "a", "rhs": "a", "all_negs": True},
    ]
    keys = {"relations": relations, "self_negatives": True} | changes
    return make_config("dynamic", "none", "dot", "softmax", **keys)


def test_key_applies_to_each_relation_by_itself():
    config = mixed_config()
    assert [config.has_self_negatives(relation) for relation in config.relations] == [True, False, False]
    engine, table = TorchEngine(config, 3), Table(torch.randn(9, 6), torch.ones(9))
    both = {"a": table, "b": Table(torch.randn(9, 6), torch.ones(9))}
    widths = {}
    for index in range(3):
        ends = [Single(torch.arange(4)), Single(torch.arange(4) + 1)]
        batch = replace(
            Case(config).batch, lhs=ends[0], rhs=ends[1], rel=torch.zeros(4, dtype=torch.int64), family=index
        )
        batch = replace(batch, family=int(engine.families.first[index]), like=index)
        tables = engine._tables(batch, both, both)
        found = engine.selves.of(batch, tables)
        widths[config.relations[index].name] = None if found is None else found.tolist()
    assert widths == {"same": [True] * 4, "other": None, "all": None}


def test_two_partitions_give_the_result_of_one(engine):
    """Equal offsets of two partitions are two entities, and no loop."""
    make, bound, dtype = engine
    config = make_config("dynamic", "complex_diagonal", "dot", "softmax", FEATURE)
    counts = {"a": 14, "b": 9}
    whole = Case(config, make_engine=make, counts=counts)
    rows = torch.arange(13) % 7
    draws = {side: drawn % 7 for side, drawn in whole.draws.items()}
    whole.batch = replace(whole.batch, lhs=Single(rows), rhs=Single(rows + 7))
    whole.draws = {"lhs": draws["lhs"], "rhs": draws["rhs"] + 7}
    expected = whole.reference()
    assert_same_step(whole, expected, bound=bound, dtype=dtype)

    after = whole.state.copy(dtype)
    whole.engine.shared.values.update(after.params)
    whole.engine.shared.sums.update(after.param_sums)
    halves = [
        Table(after.embeddings["a"][part].clone(), after.row_sums["a"][part].clone())
        for part in (slice(0, 7), slice(7, 14))
    ]
    batch = replace(whole.batch, rhs=Single(rows))
    found = whole.engine.step(batch, {"a": halves[0]}, {"a": halves[1]}, Draws(draws.values()))
    assert_equal(found.loss, expected[0].loss, bound)
    assert_equal(torch.cat([half.embeddings for half in halves]), expected[1].embeddings["a"], bound)


def test_known_end_ranks_first_only_without_it():
    ids = np.arange(60)
    edges = EdgeList(ids, (ids + 1) % 60, np.zeros(60, np.int64))
    first = {}
    for wanted in (False, True):
        config = one_type(
            {"operator": "complex_diagonal"},
            dynamic_relations=True,
            dimension=16,
            comparator="dot",
            loss_fn="softmax",
            batch_size=20,
            num_batch_negs=10,
            num_uniform_negs=0,
            disable_lhs_negs=True,
            lr=0.1,
            self_negatives=wanted,
        )
        table = Table.random(60, 16, 0.1, torch.Generator().manual_seed(0))
        trained, generator = TorchEngine(config, 1), torch.Generator().manual_seed(0)
        for _ in range(20):
            trained.train_bucket(edges, {"e": table}, {"e": table}, generator=generator)
        real, imag = (trained.shared.values[f"relations/0/operator/lhs/{part}"][0] for part in ("real", "imag"))
        x, y = table.embeddings[:, :8], table.embeddings[:, 8:]
        queries = torch.cat((x * real - y * imag, x * imag + y * real), dim=1)
        answers = (queries @ table.embeddings.T).argmax(1)
        first[wanted] = int((answers == torch.arange(60)).sum())
    assert first[True] == 0
    assert first[False] > 10


def test_evaluation_while_training_ranks_among_pbgs_negatives():
    config = make_config("dynamic", "none", "dot", "softmax", FEATURE, eval_num_uniform_negs=None)
    assert not evaluation_config(config).self_negatives


@pytest.mark.parametrize("relation", [{"rhs": "b"}, {"rhs": "a", "all_negs": True}, {"lhs": "f", "rhs": "f"}])
def test_config_without_any_fitting_relation_is_refused(relation):
    keys = {
        "entities": {
            "a": {"num_partitions": 1},
            "b": {"num_partitions": 1},
            "f": {"num_partitions": 1, "featurized": True},
        },
        "relations": [{"name": "r", "lhs": "a"} | relation],
        "dimension": 4,
        "self_negatives": True,
    }
    with pytest.raises(
        ConfigError, match=r"^here: the whole: self_negatives has no effect on any relation: each has .*; leave it out$"
    ):
        parse(ModelConfig, keys, source="here")
    parse(ModelConfig, keys | {"self_negatives": False}, source="here")


def test_default_of_key_is_in_no_dump():
    """Earlier versions refuse unknown keys.

    The ids of runs are hashes of dumps.
    """
    keys = {
        "entities": {"a": {"num_partitions": 1}},
        "relations": [{"name": "r", "lhs": "a", "rhs": "a"}],
        "dimension": 4,
    }
    config = parse(ModelConfig, keys, source="here")
    assert not config.self_negatives
    assert "self_negatives" not in config.model_dump(mode="json")
    assert parse(ModelConfig, keys | {"self_negatives": True}, source="here").model_dump()["self_negatives"]


class Files:
    """Buckets of a directory; those without edges have no file."""

    def __init__(self, directory):
        self._directory = directory

    def local(self, edge_path_idx, bucket):
        path = self._directory / str(edge_path_idx) / edge_file_name(*bucket)
        return path if path.exists() else None


def write(directory, buckets):
    """Write (edge path, lhs partition, rhs partition): [(lhs, rel, rhs)]."""
    for (path, *bucket), listed in buckets.items():
        (directory / str(path)).mkdir(exist_ok=True)
        lhs, rel, rhs = np.array(listed, np.int64).T
        with EdgeFileWriter(directory / str(path) / edge_file_name(*bucket), len(listed), weighted=False) as writer:
            writer.append(EdgeList(lhs, rhs, rel))
    return FiledEdges(Files(directory))


def schema(entities, relations, *, paths=1, **keys):
    return ConfigSchema.model_validate(
        {
            "entities": {name: {"num_partitions": parts} for name, parts in entities.items()},
            "relations": [{"name": f"{lhs}{rhs}{n}", "lhs": lhs, "rhs": rhs} for n, (lhs, rhs) in enumerate(relations)],
            "dimension": 4,
            "entity_path": "e",
            "edge_paths": [f"edges{path}" for path in range(paths)],
            "checkpoint_path": "c",
        }
        | keys
    )


def loops_in(config, edges, count=0):
    return relations_with_loops(config, Families(config, count), edges).tolist()


def test_loops_are_found_on_diagonal_of_paths(tmp_path, monkeypatch):
    monkeypatch.setattr(self_negatives, "_READ_EDGES", 2)
    config = schema({"a": 2}, [("a", "a")] * 5, paths=2)
    edges = write(
        tmp_path,
        {
            (0, 0, 0): [(0, 0, 1), (3, 1, 2), (3, 1, 3)],
            (0, 0, 1): [(4, 2, 4), (5, 0, 5)],  # equal offsets of two partitions
            (1, 1, 1): [(0, 0, 1), (1, 0, 2), (6, 3, 6), (1, 7, 1)],  # relation 7 does not exist
        },
    )
    assert loops_in(config, edges) == [1, 3]


@pytest.mark.parametrize(("loops", "found"), [(1, []), (2, [0]), (0, [])])
def test_relations_with_rare_loops_count_as_without(tmp_path, loops, found):
    """One loop in 200 edges is an exception, two are not.

    Two are one in a hundred.
    """
    listed = [(end, 0, end + (end >= loops)) for end in range(200)]
    config = schema({"a": 1}, [("a", "a")])
    assert loops_in(config, write(tmp_path, {(0, 0, 0): listed})) == found


@pytest.mark.parametrize(("loops", "found"), [(1, []), (2, [0])])
def test_share_of_loops_is_that_of_all_buckets(tmp_path, loops, found):
    """Half of the edges are in the buckets read.

    They are of two partitions.
    """
    config = schema({"a": 2}, [("a", "a")])
    buckets = {(0, 0, 0): [(end, 0, end + (end >= loops)) for end in range(50)]}
    buckets |= {(0, *bucket): [(end, 0, end + 1) for end in range(50)] for bucket in ((0, 1), (1, 0), (1, 1))}
    assert loops_in(config, write(tmp_path, buckets)) == found


@pytest.mark.parametrize(("loops", "found"), [(1, []), (20, [0]), (90, [0])])
def test_share_of_loops_with_many_partitions_stays(tmp_path, loops, found):
    """The diagonal has all loops and one in 200 of the others."""
    config = schema({"a": 200}, [("a", "a")])
    listed = [(end, 0, end) for end in range(loops)] + [(0, 0, 1)]
    assert loops_in(config, write(tmp_path, {(0, 7, 7): listed})) == found


def test_loops_of_unpartitioned_type_are_found_everywhere(tmp_path):
    config = schema({"a": 1, "b": 2}, [("a", "a"), ("b", "b"), ("a", "b")])
    edges = write(tmp_path, {(0, 1, 0): [(2, 0, 2), (2, 1, 2), (3, 2, 3)]})
    assert loops_in(config, edges) == [0]


def test_loops_of_relations_from_the_data_are_found(tmp_path):
    config = schema({"a": 1}, [("a", "a")], dynamic_relations=True, global_emb=False)
    assert loops_in(config, write(tmp_path, {(0, 0, 0): [(1, 2, 1), (0, 0, 3)]}), 4) == [2]


def test_damaged_bucket_is_named_by_loop_search(tmp_path):
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / edge_file_name(0, 0)).write_bytes(b"no HDF5")
    with pytest.raises(FormatError, match=r"edges_0_0\.h5"):
        loops_in(schema({"a": 1}, [("a", "a")]), FiledEdges(Files(tmp_path)))
