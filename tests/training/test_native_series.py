"""Batches that the native library trains one after another in one call."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.native import NativeEngine
from pbg_tasks.training.engine.pace import Pace
from tests.model.configs import one_type
from tests.training.native_steps import native

pytestmark = native

ENTITIES, RELATIONS, EDGES = 60, 3, 237

CASES = {
    "a relation": {},
    "dynamic relations": {"dynamic_relations": True, "regularizer": "N3", "regularization_coef": 1e-3},
    "sampled gradients": {"gradient": "sampled", "loss_fn": "softmax"},
    "negatives by degree": {"negatives_by_degree": 0.5},
    "known ends": {"dynamic_relations": True, "self_negatives": True},
    "relations by turns": {"relations": [{"name": name, "lhs": "e", "rhs": "e"} for name in "abc"]},
    "one side": {"disable_lhs_negs": True},
    "drawn alone": {"num_batch_negs": 0},  # the last chunk of each batch has fewer edges
}


def trained(keys, several, weighted):
    """Return all results of a bucket, trained by several batches a call."""
    settings = {"dimension": 12, "batch_size": 20, "num_batch_negs": 10, "num_uniform_negs": 7}
    config = one_type({"operator": "translation"}, **settings | keys)
    many = config.dynamic_relations or len(config.relations) > 1
    engine = NativeEngine(config, RELATIONS if many else 1)
    calls, call = [], engine._library.pbg_train_steps

    class Counted:
        def pbg_train_steps(self, step, memory):
            calls.append(step._obj.steps)
            return call(step, memory)

    engine._several, engine._library = several, Counted()
    random = np.random.default_rng(0)
    rel = random.integers(0, RELATIONS, EDGES) if many else np.zeros(EDGES, np.int64)
    weight = random.random(EDGES, np.float32) if weighted else None
    edges = EdgeList(random.integers(0, ENTITIES, EDGES), random.integers(0, ENTITIES, EDGES), rel, weight=weight)
    table = Table.random(ENTITIES, 12, 1.0, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    pace = Pace(rate=lambda share: 1 - share / 2)
    stats, _ = engine.train_bucket(edges, {"e": table}, {"e": table}, pace, generator=generator)
    figures = (stats.count, stats.loss, stats.reg, stats.violators_lhs, stats.violators_rhs)
    values = [*engine.shared.values.values(), table.embeddings, table.row_sums, generator.get_state()]
    return figures, values, calls


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_series_of_batches_gives_bits_of_single_ones(name, weighted):
    figures, values, calls = trained(CASES[name], 1, weighted)
    assert set(calls) == {1}
    again, same, fewer = trained(CASES[name], 16, weighted)
    assert max(fewer) > 1
    assert sum(fewer) == len(calls)
    assert again == figures
    for value, other in zip(values, same, strict=True):
        assert torch.equal(value, other)


@pytest.mark.parametrize(("operator", "several"), [("translation", 16), ("linear", 1)])
def test_batches_of_slow_operator_stay_single(operator, several):
    """One batch of matrices takes more than the tenth of a second."""
    few = {"dimension": 512, "batch_size": 1000, "num_batch_negs": 1, "num_uniform_negs": 1}
    config = one_type({"operator": operator}, **few)
    assert NativeEngine(config, 1)._several == several


@pytest.mark.parametrize(("chunk", "several"), [(10, 1), (50, 6), (100, 10)])
def test_batches_of_many_draws_stay_few(chunk, several):
    """The negatives of all are in memory at once, by each worker."""
    config = one_type(dimension=16, batch_size=10_000, num_batch_negs=chunk, num_uniform_negs=100)
    assert NativeEngine(config, 1)._several == several
