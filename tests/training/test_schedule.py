from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest

from pbg_tasks.training.schedule import Bucket, Rooms, bucket_order

ORDERS = ("random", "affinity", "inside_out", "outside_in", "min_swaps")


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize(("lhs", "rhs"), [(1, 1), (4, 4), (1, 5), (5, 1), (3, 6), (12, 12)])
def test_each_bucket_comes_once(name, lhs, rhs):
    order = bucket_order(name, lhs, rhs, seed="7/0")
    assert len(order) == lhs * rhs
    assert set(order) == {Bucket(i, j) for i in range(lhs) for j in range(rhs)}


@pytest.mark.parametrize("name", ORDERS)
def test_seed_decides_the_order(name):
    first = bucket_order(name, 6, 6, seed="1")
    assert first == bucket_order(name, 6, 6, seed="1")
    assert any(first != bucket_order(name, 6, 6, seed=str(seed)) for seed in range(2, 6))


def test_inside_out_ends_where_outside_in_starts():
    layer_in = [min(bucket) for bucket in bucket_order("outside_in", 5, 5, seed="x")]
    layer_out = [min(bucket) for bucket in bucket_order("inside_out", 5, 5, seed="x")]
    assert layer_in == sorted(layer_in)
    assert layer_out == sorted(layer_out, reverse=True)


@pytest.mark.parametrize("name", ["affinity", "inside_out", "outside_in"])
def test_transposed_buckets_are_neighbours(name):
    order = bucket_order(name, 6, 6, seed="3")
    place = {bucket: index for index, bucket in enumerate(order)}
    off_diagonal = [bucket for bucket in order if bucket.lhs < bucket.rhs]
    assert all(abs(place[bucket] - place[Bucket(bucket.rhs, bucket.lhs)]) == 1 for bucket in off_diagonal)


def test_affinity_reads_fewer_partitions_than_random():
    def reads(order):
        return sum(len(set(after) - set(before)) for before, after in pairwise(order))

    assert reads(bucket_order("affinity", 8, 8, seed="5")) < 0.6 * reads(bucket_order("random", 8, 8, seed="5"))


@pytest.mark.parametrize("room", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 12])
def test_min_swaps_covers_grid_in_any_memory(count, room, shared):
    order = bucket_order("min_swaps", count, count, seed="1", rooms=Rooms(room, room + 1, shared))
    assert len(order) == len(set(order)) == count**2


def plain_affinity(lhs_count, rhs_count, seed):
    """Return the order by its definition.

    Each step looks at all buckets that are left.
    """
    rng = random.Random(seed)
    left = [Bucket(lhs, rhs) for lhs in range(lhs_count) for rhs in range(rhs_count)]
    rng.shuffle(left)
    order = [left.pop()]
    while left:
        last = order[-1]
        transposed = Bucket(last.rhs, last.lhs)
        sharing = [bucket for bucket in left if bucket.lhs == last.lhs or bucket.rhs == last.rhs]
        chosen = transposed if transposed in left else rng.choice(sharing or left)
        left.remove(chosen)
        order.append(chosen)
    return order


@pytest.mark.parametrize("lhs", [1, 2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("rhs", [1, 2, 3, 4, 6, 8, 13])
def test_affinity_equals_its_definition(lhs, rhs):
    for number in range(12):
        seed = f"{number}/order/1"
        assert bucket_order("affinity", lhs, rhs, seed=seed) == plain_affinity(lhs, rhs, seed)


def test_affinity_of_many_partitions_is_fast():
    """Its plain definition takes many times the bound.

    The bound is over ten times its usual time.
    """
    started = time.process_time()
    assert len(set(bucket_order("affinity", 128, 128, seed="1"))) == 128**2
    assert time.process_time() - started < 4
