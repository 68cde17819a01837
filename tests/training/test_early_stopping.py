"""The rule of early stopping, and the sample that it ranks."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from pbg_tasks.config import ModelConfig
from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.training.early_stopping import EarlyStopping, stops
from pbg_tasks.training.iteration_plan import IterationPlan
from pbg_tasks.training.schedule import Bucket
from pbg_tasks.training.valid_sample import MOST, affordable, all_compared, negatives_of_edge
from tests.checkpoint.samples import iteration


class Valid:
    """Valid edges of two buckets, numbered; reads are counted."""

    def __init__(self, counts):
        self.counts, self.reads = counts, []

    def count(self, _, bucket):
        return self.counts[bucket]

    def read(self, _, bucket, start, stop):
        self.reads.append(bucket)
        numbers = np.arange(start, stop)
        return EdgeList(numbers, numbers, np.zeros(stop - start, np.int64))


BIG, SMALL, NONE = Bucket(0, 0), Bucket(0, 1), Bucket(1, 1)
TRAINED = {NONE: 30_000, SMALL: 40_000, BIG: 50_000, Bucket(1, 0): 10}


def rule(*, trained=TRAINED, seed=0, total=1000, negatives=420):
    edges = Valid({BIG: 900, SMALL: 100, NONE: 0})
    return EarlyStopping(2, edges, total=total, trained=trained, negatives=negatives, dimension=100, seed=seed)


@pytest.mark.parametrize(
    ("trained", "negatives", "dimension", "edges"),
    [
        (400_000, 100, 100, 533),
        (200_000, 100, 100, 0),
        (200_000, 100, 400, 609),
        (400_000, 150, 32, 432),
        (50_000, 1_000, 100, 557),
        (10**9, 100, 100, MOST),
        (0, 100, 100, 0),
    ],
)
def test_affordable_sample_grows_with_training(trained, negatives, dimension, edges):
    assert affordable(trained, negatives, dimension) == edges


@pytest.mark.parametrize(
    ("negatives", "dimension", "of_edge", "of_ranking"),
    [
        (100, 100, 1.12, 31.7),
        (550, 100, 5.37, 32.8),
        (550, 200, 8.84, 26.7),
        (150, 32, 0.89, 32.6),
        (1050, 400, 27.8, 41.4),
    ],
)
def test_ranking_takes_a_twentieth_at_most(negatives, dimension, of_edge, of_ranking):
    """Microseconds as measured with the native engine."""
    assert affordable(10**6, negatives, dimension) * of_ranking <= 0.05 * 10**6 * of_edge


@pytest.mark.parametrize(("all_negs", "number", "edges"), [(True, 2_034, 588), (False, 500, 0)])
def test_all_entities_count_as_negatives(all_negs, number, edges):
    """Without a sample no training among all entities would stop early."""
    config = ModelConfig.model_validate(
        {
            "entities": {"user": {"num_partitions": 2}, "item": {"num_partitions": 1}},
            "relations": [{"name": "r", "lhs": "user", "rhs": "item", "all_negs": all_negs}],
            "dimension": 200,
            "num_batch_negs": 0,
            "num_uniform_negs": 0 if all_negs else 500,
        }
    )
    assert all_compared(config) is all_negs
    assert negatives_of_edge(config, {"user": [2_000, 2_034], "item": [9_000]}) == number
    assert affordable(32_888, number, 200, all_negs=all_negs) == edges


def test_sample_is_of_largest_buckets():
    assert rule()._affordable == 578
    assert rule()._chosen == [BIG, SMALL]
    assert rule(negatives=40)._chosen == []
    assert rule(trained={BIG: 120_000}, negatives=320)._chosen == [BIG]  # which has more valid edges than are ranked
    assert rule(trained={BIG: 120_000}, negatives=320).size == 448
    assert rule(negatives=3000)._chosen == [BIG, SMALL, NONE, Bucket(1, 0)]


@pytest.mark.parametrize(
    ("figures", "patience", "stopped"),
    [
        ((), 1, False),
        ((0.1,), 1, False),
        ((0.2, 0.1), 1, True),
        ((0.2, 0.1), 2, False),
        ((0.2, 0.1, 0.19), 2, True),
        ((0.2, 0.2, 0.2), 2, True),
        ((0.2, 0.1, 0.3), 2, False),
    ],
)
def test_stop_comes_after_patience(figures, patience, stopped):
    assert stops(figures, patience) is stopped


@pytest.mark.parametrize(("figures", "figure"), [((0.1, 0.2), 0.3), ((0.1,), None), ((), None)])
def test_epoch_after_unranked_ones_has_no_figure(figures, figure):
    """An upgraded training would release a wrong epoch."""
    plan, before = SimpleNamespace(early_stopping=rule()), SimpleNamespace(valid=figures)
    assert IterationPlan.figure(plan, iteration(3), SimpleNamespace(mrr=0.3), before) == figure


def test_sample_is_drawn_by_bucket_once():
    found = rule()
    big, small = (found.sample(iteration(1), bucket) for bucket in (BIG, SMALL))
    assert (len(big), len(small)) == (289, 100)
    assert found.sample(iteration(1), NONE) is None
    assert len(set(big.lhs.tolist())) == 289
    assert big.lhs.max() >= 800  # of the whole bucket, not its beginning
    assert found.sample(iteration(2), BIG) is big
    assert found.edges.reads == [BIG, SMALL]


def test_sample_follows_from_seed():
    first, same, other = (rule(seed=seed).sample(iteration(1), BIG).lhs for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, same)
    assert set(first.tolist()) != set(other.tolist())


def test_chunk_within_epoch_has_no_sample():
    chunk = iteration(1).model_copy(update={"num_edge_chunks": 2})
    assert rule().sample(chunk, BIG) is None
    assert rule().sample(chunk.model_copy(update={"edge_chunk_idx": 1}), BIG) is not None


def test_small_graph_ranks_nothing_and_reports_why():
    found = rule(trained={BIG: 4_000})
    assert found.sample(iteration(1), BIG) is None
    report = found.report(None, 5)
    assert report["best_epoch"] is None
    assert report["reason"] == (
        "off, because fewer than 400 of the 1000 valid edges can be ranked in 4 % of an epoch's time, too few to judge "
        "an epoch by"
    )
    few = rule(total=399, trained={BIG: 10**6})
    assert few.size == 0
    reason = "off, because 399 valid edges are too few to judge an epoch by; it takes 400"
    assert few.report(None, 5)["reason"] == reason
