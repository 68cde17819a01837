"""``negatives_by_degree``: entities with many edges are drawn as negatives more often."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pbg_tasks.config import ModelConfig
from pbg_tasks.config.base import parse
from pbg_tasks.errors import ConfigError
from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.model.families import Families
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.degrees import bucket_samplers, degree_shares
from pbg_tasks.training.engine.native import NativeEngine
from pbg_tasks.training.engine.on_torch import TorchEngine
from pbg_tasks.training.engine.pace import NOTHING, Pace
from tests.training.native_steps import native

KEYS = {
    "entities": {"a": {"num_partitions": 2}, "b": {"num_partitions": 1}},
    "relations": [{"name": "r", "lhs": "a", "rhs": "a"}, {"name": "s", "lhs": "a", "rhs": "b"}],
    "dimension": 4,
    "batch_size": 20,
    "num_batch_negs": 5,
    "num_uniform_negs": 6,
    "comparator": "dot",
    "loss_fn": "softmax",
}
EDGES = EdgeList(*(np.array(column) for column in ([0, 0, 0, 2, 1], [1, 1, 3, 1, 1], [0, 0, 0, 1, 0])))


def make_config(**changes):
    return parse(ModelConfig, KEYS | {"negatives_by_degree": 0.75} | changes, source="here")


def table(rows, seed=0):
    return Table.random(rows, 4, 0.1, torch.Generator().manual_seed(seed))


def chances(power):
    config = make_config(negatives_by_degree=power)
    tables = {"lhs": {"a": range(4), "b": range(3)}, "rhs": {"a": range(5), "b": range(3)}}
    shares = degree_shares(config, Families(config, 2), EDGES, tables)
    return {key: np.diff(summed.numpy(), prepend=0) for key, summed in shares.items()}


@pytest.mark.parametrize("power", [0.5, 0.75, 1.0])
def test_chances_are_powers_of_degrees(power):
    degrees = {("lhs", "a"): [3, 1, 1, 0], ("rhs", "a"): [0, 3, 0, 1, 0], ("rhs", "b"): [0, 1, 0]}
    found = chances(power)
    assert found.keys() == degrees.keys()
    for key, counts in degrees.items():
        weights = (np.array(counts) + 1.0) ** power
        np.testing.assert_allclose(found[key], weights / weights.sum(), rtol=1e-12)


def test_draws_follow_chances_and_repeat_by_seed():
    config = make_config()
    tables = {"lhs": {"a": range(4)}, "rhs": {"a": range(5), "b": range(3)}}

    def draw():
        (sampler,) = bucket_samplers(config, Families(config, 2), [torch.Generator().manual_seed(5)], EDGES, tables)
        return sampler.draw(100, 100, 5, "rhs", "a")

    drawn = draw()
    assert (drawn.shape, drawn.dtype) == ((100, 100), torch.int64)
    assert torch.equal(drawn, draw())
    counts = torch.bincount(drawn.view(-1), minlength=5).double()
    expected = torch.from_numpy(chances(0.75)["rhs", "a"]) * 10_000
    assert len(counts) == 5
    assert ((counts - expected).abs() < 5 * expected.sqrt()).all()  # five standard deviations


def test_every_number_leads_to_an_entity():
    """Try the largest and the smallest number of a generator."""
    summed = torch.from_numpy(np.cumsum(chances(1.0)["lhs", "a"]))
    summed = summed / summed[-1]
    found = torch.searchsorted(summed, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64), right=True)
    assert found.tolist() == [0, 3]


def graph(edges=400, seed=0):
    rng = np.random.default_rng(seed)
    ends = rng.integers(40, size=edges), rng.zipf(1.5, size=edges).clip(max=40) - 1
    return EdgeList(*ends, np.zeros(edges, np.int64))


def trained(make, *, parts=(None,), **changes):
    config = make_config(**changes)
    engine, generator = make(config, 2), torch.Generator().manual_seed(3)
    rows, other = table(40), table(3, 1)
    tables, begun = {"a": rows, "b": other}, NOTHING
    for limit in parts:
        left = iter(range(limit or 1000))
        _, begun = engine.train_bucket(
            graph(),
            tables,
            tables,
            Pace(),
            generator=torch.Generator().manual_seed(3) if begun != NOTHING else generator,
            begun=begun,
            stop=lambda left=left: next(left, None) is None,
        )
    return rows.embeddings


@pytest.mark.parametrize("make", [TorchEngine, pytest.param(NativeEngine, marks=native)])
def test_training_by_degree_repeats_with_the_seed(make):
    first = trained(make)
    assert torch.equal(first, trained(make))
    assert torch.equal(first, trained(make, parts=(7, None)))
    assert not torch.equal(first, trained(make, negatives_by_degree=0.0))


@native
def test_both_engines_draw_the_same():
    torch.testing.assert_close(trained(NativeEngine), trained(TorchEngine), rtol=1e-3, atol=1e-4)


def test_zero_draws_as_before():
    """Compare with PBG's stream of numbers, bit for bit."""
    config, generator = make_config(negatives_by_degree=0.0), torch.Generator().manual_seed(9)
    (sampler,) = bucket_samplers(config, Families(config, 2), [generator], EDGES, {"lhs": {}, "rhs": {}})
    expected = torch.randint(7, (2, 3), generator=torch.Generator().manual_seed(9))
    assert torch.equal(sampler.draw(2, 3, 7, "lhs", "a"), expected)
    assert "negatives_by_degree" not in config.model_dump()


@pytest.mark.parametrize(
    "changes", [{"num_uniform_negs": 0}, {"relations": [{"name": "r", "lhs": "a", "rhs": "a", "all_negs": True}]}]
)
def test_config_that_draws_nothing_is_refused(changes):
    with pytest.raises(ConfigError, match="negatives_by_degree has no effect, because no negatives are drawn"):
        make_config(**changes)


@pytest.mark.parametrize("power", [-0.1, 1.5])
def test_power_out_of_range_is_refused(power):
    with pytest.raises(ConfigError, match="negatives_by_degree"):
        make_config(negatives_by_degree=power)
