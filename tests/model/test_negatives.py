from __future__ import annotations

import pytest
import torch

from pbg_tasks.model.negatives import ChunkPlan, UniformSampler, chunk_plan
from tests.model.configs import one_type


def plan(edges, *, batch_negs=50, uniform_negs=50, all_negs=False):
    config = one_type({"all_negs": all_negs}, num_batch_negs=batch_negs, num_uniform_negs=uniform_negs)
    return chunk_plan(config, config.relations[0], edges)


@pytest.mark.parametrize(
    ("settings", "edges", "expected"),
    [
        ({}, 1000, ("batch_uniform", 50, 20, 50)),
        ({}, 120, ("batch_uniform", 50, 3, 50)),
        ({}, 7, ("batch_uniform", 7, 1, 50)),
        ({"uniform_negs": 0}, 120, ("batch_uniform", 50, 3, 0)),
        ({"batch_negs": 0, "uniform_negs": 30}, 120, ("uniform", 30, 4, 30)),
        ({"batch_negs": 0, "uniform_negs": 300}, 120, ("uniform", 120, 1, 300)),
        ({"all_negs": True}, 120, ("all", 120, 1, 0)),
    ],
)
def test_batch_is_cut_as_by_pbg(settings, edges, expected):
    kind, size, chunks, uniform = expected
    assert plan(edges, **settings) == ChunkPlan(kind, edges, size, chunks, uniform)


def test_padding_is_zero_and_removed_again():
    x = torch.randn(7, 3)
    cut = ChunkPlan("batch_uniform", 7, 5, 2, 0)
    chunked = cut.chunked(x)
    assert chunked.shape == (2, 5, 3)
    assert not chunked[1, 2:].any()
    assert torch.equal(cut.flat(chunked), x)


def test_uniform_draws_reach_all_entities_and_repeat():
    draws = [UniformSampler(torch.Generator().manual_seed(5)).draw(20, 50, 10, "lhs", "e") for _ in range(2)]
    assert torch.equal(*draws)
    counts = torch.bincount(draws[0].view(-1), minlength=10)
    assert len(counts) == 10
    # 1000 draws, 100 expected of each, standard deviation 9.5
    assert (counts > 50).all()
    assert (counts < 150).all()
