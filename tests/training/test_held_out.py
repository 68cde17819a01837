from __future__ import annotations

import numpy as np
import pytest
import torch

from pbg_tasks.formats.edges import EdgeList, Features
from pbg_tasks.model.negatives import MASKED
from pbg_tasks.training.engine.held_out import Ranking, split_off


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def numbered(count):
    ids = np.arange(count)
    return EdgeList(ids, ids, ids, ids.astype(np.float32), Features.of([[number] for number in ids]))


@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.2, 0.999])
def test_held_out_edges_are_never_trained_or_lost(fraction):
    edges = numbered(1003)
    trained, held_out = split_off(edges, fraction, generator())
    assert len(held_out) == int(1003 * fraction)
    assert not set(trained.lhs) & set(held_out.lhs)
    assert sorted([*trained.lhs, *held_out.lhs]) == list(range(1003))
    for part in (trained, held_out):
        assert part.weight.tolist() == part.rhs.tolist() == part.lhs_features.data.tolist()


def test_same_edges_are_held_out_every_time():
    first, again, other = (split_off(numbered(100), 0.3, generator(seed))[1] for seed in (1, 1, 2))
    assert first.lhs.tolist() == again.lhs.tolist() != other.lhs.tolist()


def test_ranks_count_ties_against_the_edge():
    ranking = Ranking.start(generator())
    ranking.add("lhs", torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 0.0, 3.0], [MASKED, 0.0, 1.0]]))
    ranking.add("rhs", torch.tensor([1.0, 2.0]), torch.empty(2, 0))
    stats = ranking.stats(2, 5.0)
    assert (stats.count, stats.loss, stats.pos_rank, stats.mrr) == (2, 2.5, 2.0, pytest.approx((1 / 3 + 1) / 2))
    assert (stats.r1, stats.r10, stats.r50) == (0.5, 1.0, 1.0)


def test_auc_is_share_of_negatives_beaten():
    ranking = Ranking.start(generator())
    ranking.add("lhs", torch.full((20_000,), 0.5), torch.tensor([[MASKED, 0.0, 1.0, 0.25]]).expand(20_000, 4))
    assert ranking.stats(20_000, 0.0).auc == pytest.approx(2 / 3, abs=0.02)


@pytest.mark.parametrize("masked", [0, 1, 997, 999])
def test_auc_draws_each_unmasked_negative_alike(masked):
    scores = torch.cat([torch.full((masked,), MASKED), torch.linspace(0, 1, 1000 - masked)])
    ranking = Ranking.start(generator())
    ranking.add("rhs", torch.full((20_000,), 0.7), scores.expand(20_000, 1000))
    beaten = float((scores[masked:] < 0.7).double().mean())
    assert ranking.stats(20_000, 0.0).auc == pytest.approx(beaten, abs=0.012)


def test_auc_without_unmasked_negative_is_one():
    ranking = Ranking.start(generator())
    ranking.add("lhs", torch.zeros(3), torch.full((3, 2), MASKED))
    assert ranking.stats(3, 0.0).auc == 1.0


def test_ranks_without_negatives_are_counted():
    ranking = Ranking.start(generator())
    ranking.add("lhs", torch.zeros(2), torch.tensor([[MASKED, MASKED], [MASKED, 0.0]]))
    ranking.add("rhs", torch.zeros(2), torch.full((2, 1), MASKED))
    assert ranking.alone == 3
