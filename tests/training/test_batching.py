from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from pbg_tasks.config import ModelConfig
from pbg_tasks.errors import FormatError
from pbg_tasks.formats.edges import EdgeList, Features
from pbg_tasks.model.families import Families
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.batching import batches, check_edges


@pytest.fixture
def edges():
    rng = np.random.default_rng(4)
    rel = rng.choice(4, size=103, p=[0.6, 0.3, 0.1, 0.0])
    return EdgeList(np.arange(103), rng.integers(50, size=103), rel, np.arange(103, dtype=np.float32))


def make_config(*, dynamic, size=10, types=("e", "e"), count=4, **changes):
    relations = [{"name": f"r{index}", "lhs": types[0], "rhs": types[1]} for index in range(1 if dynamic else count)]
    settings = {
        "entities": {name: {"num_partitions": 1} for name in types},
        "relations": relations,
        "dimension": 2,
        "dynamic_relations": dynamic,
        "global_emb": False,
        "batch_size": size,
        "num_batch_negs": 1,
    }
    return ModelConfig.model_validate(settings | changes)


def cut(edges, *, dynamic, seed=1, size=10):
    config = make_config(dynamic=dynamic, size=size)
    return list(batches(edges, config, Families(config, 4), torch.Generator().manual_seed(seed)))


def rows(lookup):
    return lookup.rows_M.tolist()


@pytest.mark.parametrize("dynamic", [False, True])
def test_every_edge_comes_once_with_its_columns(edges, dynamic):
    seen = []
    for batch in cut(edges, dynamic=dynamic):
        rel = batch.rel.tolist() if dynamic else [batch.family] * len(batch)
        seen += zip(rows(batch.lhs), rows(batch.rhs), rel, batch.weight.tolist(), strict=True)
    assert Counter(seen) == Counter(
        zip(*(c.tolist() for c in (edges.lhs, edges.rhs, edges.rel, edges.weight)), strict=True)
    )


def test_standard_batches_are_full_except_the_last(edges):
    sizes = {}
    for batch in cut(edges, dynamic=False):
        sizes.setdefault(batch.family, []).append(len(batch))
    for relation, listed in sizes.items():
        total = int((edges.rel == relation).sum())
        assert listed == [10] * (total // 10) + ([total % 10] if total % 10 else [])


def test_relations_alternate_at_random(edges):
    orders = {tuple(batch.family for batch in cut(edges, dynamic=False, seed=seed)) for seed in range(5)}
    assert len(orders) > 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_seed_decides_the_batches(edges, dynamic):
    def order(seed):
        return [rows(batch.lhs) for batch in cut(edges, dynamic=dynamic, seed=seed)]

    assert order(1) == order(1)
    assert order(1) != order(2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_no_edges_give_no_batches(dynamic):
    none = np.empty(0, np.int64)
    assert cut(EdgeList(none, none, none), dynamic=dynamic) == []


@pytest.mark.parametrize(
    ("column", "row", "value", "message"),
    [
        ("rel", 0, 2, "column rel holds 2, but there are 2 relations"),
        ("lhs", 0, 5, "column lhs holds 5, but there are 5 entities of type 'a'"),
        ("rhs", 1, 5, "column rhs holds 5, but there are 5 entities of type 'a'"),
        ("rhs", 0, 8, "column rhs holds 8, but there are 8 entities of type 'b'"),
        ("rhs", 1, -1, "column rhs holds -1"),
    ],
)
def test_edges_with_unknown_numbers_are_refused(column, row, value, message):
    config = ModelConfig.model_validate(
        {
            "entities": {"a": {"num_partitions": 1}, "b": {"num_partitions": 1}},
            "relations": [{"name": "r", "lhs": "a", "rhs": "b"}, {"name": "s", "lhs": "b", "rhs": "a"}],
            "dimension": 2,
        }
    )
    tables = {name: Table(torch.zeros(count, 2), torch.zeros(count)) for name, count in (("a", 5), ("b", 8))}
    columns = {"lhs": np.array([4, 7]), "rhs": np.array([7, 4]), "rel": np.array([0, 1])}
    check_edges(EdgeList(**columns), config, Families(config, 2), tables, tables)
    columns[column][row] = value
    with pytest.raises(FormatError, match=message):
        check_edges(EdgeList(**columns), config, Families(config, 2), tables, tables)


def several_types():
    """Return a config of four relations in families by type and operator.

    Relations 0 and 2 share a family, the others are alone.
    """
    relations = [
        {"name": "r0", "lhs": "a", "rhs": "b", "operator": "diagonal"},
        {"name": "r1", "lhs": "b", "rhs": "a", "operator": "diagonal"},
        {"name": "r2", "lhs": "a", "rhs": "b", "operator": "diagonal"},
        {"name": "r3", "lhs": "a", "rhs": "b", "operator": "translation"},
    ]
    return make_config(dynamic=True, types=("a", "b"), relations=relations)


def test_dynamic_relations_share_batches_by_family():
    config = several_types()
    families = Families(config, 0)
    assert families.first.tolist() == [0, 1, 0, 3]
    assert families.row.tolist() == [0, 0, 1, 0]
    assert families.sizes == {0: 2, 1: 1, 3: 1}
    rel = np.random.default_rng(0).integers(4, size=200)
    edges = EdgeList(np.arange(200), np.arange(200), rel)
    seen = []
    for batch in batches(edges, config, families, torch.Generator().manual_seed(0)):
        assert len(batch) <= 10
        relation = [{0: 0, 1: 2}[row] if batch.family == 0 else batch.family for row in batch.rel.tolist()]
        seen += zip(rows(batch.lhs), relation, strict=True)
    assert sorted(seen) == list(enumerate(rel.tolist()))


def test_ends_of_featurized_type_are_bags():
    config = make_config(
        dynamic=False,
        types=("a", "b"),
        count=1,
        entities={"a": {"num_partitions": 1, "featurized": True}, "b": {"num_partitions": 1}},
    )
    features = Features.of([[1, 2], [], [0]])
    edges = EdgeList(np.full(3, -1), np.arange(3), np.zeros(3, np.int64), lhs_features=features)
    (batch,) = batches(edges, config, Families(config, 1), torch.Generator().manual_seed(0))
    table = torch.eye(3)
    means = torch.empty(3, 3)
    batch.lhs.gather(table, means)
    expected = torch.tensor([[0, 0.5, 0.5], [0, 0, 0], [1, 0, 0]])
    assert torch.equal(means[torch.argsort(batch.rhs.rows_M)], expected)
    spread = torch.empty(3, 3)
    batch.lhs.spread(torch.ones(3, 3), spread)
    by_row = {row: grad[0].item() for row, grad in zip(rows(batch.lhs), spread, strict=True)}
    assert by_row == {0: 1.0, 1: 0.5, 2: 0.5}
    tables = {"a": Table(table, torch.zeros(3)), "b": Table(torch.zeros(3, 3), torch.zeros(3))}
    check_edges(edges, config, Families(config, 1), tables, tables)
    wrong = EdgeList(edges.lhs, edges.rhs, edges.rel, lhs_features=Features.of([[3], [], []]))
    with pytest.raises(FormatError, match="column lhsd_data holds 3, but there are 3 features of type 'a'"):
        check_edges(wrong, config, Families(config, 1), tables, tables)
    with pytest.raises(FormatError, match="'a' is featurized, yet an edge has an id in lhs"):
        check_edges(EdgeList(edges.rhs, edges.rhs, edges.rel), config, Families(config, 1), tables, tables)


def test_differently_trained_relations_of_family_share_no_batch():
    kind = {"lhs": "a", "rhs": "b", "operator": "diagonal"}
    relations = [kind | {"name": "r0"}, kind | {"name": "r1", "weight": 2.0}, kind | {"name": "r2"}]
    config = make_config(dynamic=True, types=("a", "b"), relations=relations)
    families = Families(config, 0)
    assert families.sizes == {0: 3}
    assert families.row.tolist() == [0, 1, 2]
    edges = EdgeList(np.arange(60), np.arange(60), np.arange(60) % 3)
    seen = {}
    for batch in batches(edges, config, families, torch.Generator().manual_seed(0)):
        assert batch.family == 0
        seen.setdefault(batch.relation, set()).update(batch.rel.tolist())
    assert seen == {0: {0, 2}, 1: {1}}


@pytest.mark.parametrize("dynamic", [False, True])
def test_batches_made_as_one_have_their_edges(edges, dynamic):
    config = make_config(dynamic=dynamic)
    families = Families(config, 4)

    def cut_by(at_once, skip=0):
        generator = torch.Generator().manual_seed(1)
        return list(batches(edges, config, families, generator, skip=skip, at_once=at_once))

    single, joined = cut_by(lambda *_: 1), cut_by(lambda *_: 3)
    assert len(joined) < len(single)
    assert {len(batch) for batch in joined} & {20, 30}
    assert all(len(batch) % 10 == 0 or len(batch) < 10 for batch in joined)
    for side in ("lhs", "rhs"):
        assert [row for batch in joined for row in rows(getattr(batch, side))] == [
            row for batch in single for row in rows(getattr(batch, side))
        ]
    assert [batch.ids.tolist() for batch in cut_by(lambda *_: 1, 3)] == [batch.ids.tolist() for batch in single[3:]]
