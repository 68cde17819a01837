from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from pbg_tasks.config import ModelConfig
from pbg_tasks.errors import FormatError
from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.train.batching import batches, check_edges
from pbg_tasks.train.tables import Table


@pytest.fixture
def edges():
    rng = np.random.default_rng(4)
    rel = rng.choice(4, size=103, p=[0.6, 0.3, 0.1, 0.0])
    return EdgeList(np.arange(103), rng.integers(50, size=103), rel, np.arange(103, dtype=np.float32))


def cut(edges, *, dynamic, seed=1, size=10):
    return list(batches(edges, size, dynamic=dynamic, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("dynamic", [False, True])
def test_every_edge_comes_once_with_its_own_columns(edges, dynamic):
    seen = []
    for batch in cut(edges, dynamic=dynamic):
        rel = batch.rel.tolist() if dynamic else [batch.rel] * len(batch)
        seen += zip(batch.lhs.tolist(), batch.rhs.tolist(), rel, batch.weight.tolist(), strict=True)
    assert Counter(seen) == Counter(
        zip(*(c.tolist() for c in (edges.lhs, edges.rhs, edges.rel, edges.weight)), strict=True)
    )


def test_standard_batches_are_full_but_the_last_of_a_relation(edges):
    sizes = {}
    for batch in cut(edges, dynamic=False):
        sizes.setdefault(batch.rel, []).append(len(batch))
    for relation, listed in sizes.items():
        total = int((edges.rel == relation).sum())
        assert listed == [10] * (total // 10) + ([total % 10] if total % 10 else [])


def test_relations_alternate_at_random(edges):
    orders = {tuple(batch.rel for batch in cut(edges, dynamic=False, seed=seed)) for seed in range(5)}
    assert len(orders) > 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_seed_decides(edges, dynamic):
    def order(seed):
        return [batch.lhs.tolist() for batch in cut(edges, dynamic=dynamic, seed=seed)]

    assert order(1) == order(1)
    assert order(1) != order(2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_no_edges_are_no_batches(dynamic):
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
def test_edges_that_name_what_is_not_there_are_refused(column, row, value, message):
    config = ModelConfig.model_validate(
        {
            "entities": {"a": {"num_partitions": 1}, "b": {"num_partitions": 1}},
            "relations": [{"name": "r", "lhs": "a", "rhs": "b"}, {"name": "s", "lhs": "b", "rhs": "a"}],
            "dimension": 2,
        }
    )
    tables = {name: Table(torch.zeros(count, 2), torch.zeros(count)) for name, count in (("a", 5), ("b", 8))}
    columns = {"lhs": np.array([4, 7]), "rhs": np.array([7, 4]), "rel": np.array([0, 1])}
    check_edges(EdgeList(**columns), config, 2, tables, tables)
    columns[column][row] = value
    with pytest.raises(FormatError, match=message):
        check_edges(EdgeList(**columns), config, 2, tables, tables)
