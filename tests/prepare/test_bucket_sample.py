"""Bucket sizes estimated from a sample, compared with the true ones."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pbg_tasks.config import ModelConfig
from pbg_tasks.prepare.bucket_sample import BucketSample, largest_of
from pbg_tasks.prepare.ids import partition_of


def config(partitions):
    relations = [{"name": "r", "lhs": "n", "rhs": "n"}]
    return ModelConfig(dimension=4, entities={"n": {"num_partitions": partitions}}, relations=relations)


def sampled(edges, names, *, one_in=1):
    """Return a sample with one in so many of the edges."""
    chosen = edges[::one_in]
    types, spread = np.zeros((len(chosen), 2), np.int64), np.zeros(len(chosen), np.uint64)
    hashes = np.array([[partition_of(name, 2**64) for name in pair] for pair in chosen], np.uint64)
    return BucketSample(len(edges), names, types, hashes, spread)


def largest_bucket(edges, partitions):
    places = [partition_of(lhs, partitions) * partitions + partition_of(rhs, partitions) for lhs, rhs in edges]
    return int(np.bincount(places).max())


@pytest.mark.parametrize("hub", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("partitions", [2, 4, 16])
def test_tenth_of_edges_predicts_the_largest_bucket(hub, partitions):
    rng = random.Random(0)
    edges = [
        ("hub" if rng.random() < hub else f"e{rng.randrange(20_000)}", f"e{rng.randrange(20_000)}")
        for _ in range(100_000)
    ]
    true = largest_bucket(edges, partitions)
    assert sampled(edges, ("n",)).largest(config(partitions)) == true
    assert sampled(edges, ("n",), one_in=10).largest(config(partitions)) == pytest.approx(true, rel=0.15)


def test_edges_between_two_hubs_are_one_bucket():
    rng = random.Random(0)
    edges = [(f"e{rng.randrange(20_000)}", f"e{rng.randrange(20_000)}") for _ in range(90_000)] + [("a", "b")] * 10_000
    rng.shuffle(edges)
    found = sampled(edges, ("n",), one_in=10).largest(config(16))
    assert found == pytest.approx(largest_bucket(edges, 16), rel=0.1)


def test_sample_without_partitions_or_edges_gives_bounds():
    assert sampled([("a", "b")], ("n",)).largest(config(1)) == 1
    nothing = BucketSample(900, ("n",), np.zeros((0, 2), np.int64), np.zeros((0, 2), np.uint64), np.zeros(0, np.uint64))
    assert nothing.largest(config(3)) == largest_of(900, 1 / 9) == 130
