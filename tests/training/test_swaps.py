from __future__ import annotations

import math
import random
import re
from collections import Counter
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbg_tasks.training.data.partitions import Layout, PartitionKey, partition_keys
from pbg_tasks.training.data.swaps import SwapPlan, iteration_order
from pbg_tasks.training.schedule import Bucket, Rooms
from tests.training.buffers import make_config
from tests.training.simulated_swaps import simulate


def one_type(count, **changes):
    return make_config({"n": count}, [("n", "n")], **changes)


@pytest.mark.parametrize(
    ("buffer", "expected"),
    [
        (None, {"user": 2, "item": 4, "country": 1, "unused": 0}),
        (1, {"user": 1, "item": 2, "country": 1, "unused": 0}),
        (3, {"user": 3, "item": 3, "country": 1, "unused": 0}),
        (99, {"user": 8, "item": 8, "country": 1, "unused": 0}),
    ],
)
def test_buffer_counts_partitions_of_each_type(buffer, expected):
    parts = {"user": 8, "item": 8, "country": 1, "unused": 8}
    ends = [("user", "item"), ("item", "item"), ("item", "country")]
    layout = Layout(make_config(parts, ends, partition_buffer=buffer))
    assert layout.capacity() == expected
    assert layout.rooms() == Rooms(min(expected["user"], expected["item"]), expected["item"], shared=True)


def test_bucket_needs_partitions_and_unpartitioned_types():
    layout = Layout(make_config({"user": 3, "item": 2, "country": 1}, [("user", "item"), ("user", "country")]))
    lhs, rhs = layout.sides(Bucket(2, 1))
    assert lhs == {"user": PartitionKey("user", 2)}
    assert rhs == {"item": PartitionKey("item", 1), "country": PartitionKey("country", 0)}
    assert layout.needs(Bucket(2, 1)) == {*lhs.values(), *rhs.values()}


needs_of = st.lists(
    st.frozensets(st.builds(PartitionKey, st.sampled_from("ab"), st.integers(0, 5)), max_size=4), max_size=30
)


@given(needs_of, st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_every_bucket_has_its_partitions_within_capacity(needs, spare):
    """Check that each swap evicts the partition that is needed last.

    No partition leaves that is needed before the one that takes its place.
    """
    capacity = {
        entity: spare + max((sum(key.entity == entity for key in keys) for keys in needs), default=0) for entity in "ab"
    }
    plan = SwapPlan(needs, capacity)
    resident: set[PartitionKey] = set()
    for at, needed in enumerate(needs):
        for load, evict in plan.advance():
            assert load not in resident
            use = next(later for later in range(at, len(needs)) if load in needs[later])
            if evict is not None:
                assert all(evict not in keys for keys in needs[at : use + 1])
                resident.remove(evict)
            resident.add(load)
            count = Counter(key.entity for key in resident)
            assert all(count[entity] <= capacity[entity] for entity in "ab")
        assert needed <= resident
        assert resident == plan.resident


def test_partition_needed_last_leaves():
    a, b, c, d = (PartitionKey("n", number) for number in range(4))
    plan = SwapPlan([frozenset([key]) for key in (a, b, c, d, c, a, b)], {"n": 3})
    assert plan.advance() == [(a, None), (b, None), (c, None)]  # all of them are needed before d
    assert plan.advance() == [(d, a)]
    assert plan.advance() == []  # a is needed next, but d comes first
    assert plan.advance() == [(a, b)]
    assert plan.advance() == []
    assert plan.advance() == [(b, d)]
    assert plan.advance() == []


def least_by_any_choice(needs, capacity):
    """Return the fewest loads of plans with SwapPlan's reading ahead.

    It tries all choices of leaving partitions.
    """

    def next_use(key, at):
        return next((later for later in range(at, len(needs)) if key in needs[later]), math.inf)

    @cache
    def least(at, complete, resident, room_made_for):
        while complete < len(needs) and needs[complete] <= resident:
            complete += 1
        if complete < len(needs):
            key = min(needs[complete] - resident)
            if len(resident) < capacity:
                return 1 + least(at, complete, resident | {key}, room_made_for)
            may_leave = [other for other in resident if next_use(other, at) > complete]
            if may_leave and not at < room_made_for < complete:
                return 1 + min(least(at, complete, resident - {other} | {key}, complete) for other in may_leave)
        return 0 if at + 1 == len(needs) else least(at + 1, max(complete, at + 1), resident, room_made_for)

    return least(0, 0, frozenset(), -1)


def least_without_reading_ahead(needs, capacity):
    """Return the fewest loads possible without reading ahead.

    It tries every set of partitions in memory.
    """
    loads = {frozenset(): 0}
    for needed in needs:
        after = {}
        for resident, count in loads.items():
            others = resident - needed
            for kept in combinations(sorted(others), min(len(others), capacity - len(needed))):
                held = needed.union(kept)
                after[held] = min(after.get(held, math.inf), count + len(needed - resident))
        loads = after
    return min(loads.values())


def loads_of(needs, capacity):
    plan = SwapPlan(needs, {"n": capacity})
    return sum(len(plan.advance()) for _ in needs)


@pytest.mark.parametrize("capacity", [2, 3, 4])
def test_no_other_choice_of_partitions_reads_less(capacity):
    """A bucket here needs at most two partitions of one type.

    With three, another choice is sometimes better.
    """
    rng = random.Random(capacity)
    keys = [PartitionKey("n", number) for number in range(capacity + 2)]
    for _ in range(150):
        needs = [frozenset(rng.sample(keys, rng.randint(1, 2))) for _ in range(14)]
        assert loads_of(needs, capacity) == least_by_any_choice(needs, capacity)


@pytest.mark.parametrize("order", ["affinity", "inside_out", "outside_in", "min_swaps", "random"])
@pytest.mark.parametrize(("partitions", "buffer"), [(4, 3), (5, 3), (6, 4), (6, 5)])
def test_reading_ahead_costs_less_than_one_partition(order, partitions, buffer):
    """It loads less than any plan without it in less memory.

    That memory is smaller by one partition.
    """
    config = one_type(partitions, bucket_order=order, partition_buffer=buffer)
    for seed in range(3):
        orders = [iteration_order(config, seed=seed, number=number) for number in (1, 2)]
        needs = [Layout(config).needs(bucket) for each in orders for bucket in each]
        least, narrower = (least_without_reading_ahead(needs, rooms) for rooms in (buffer, buffer - 1))
        assert least <= loads_of(needs, buffer) < narrower


@pytest.mark.parametrize("order", ["affinity", "inside_out", "outside_in", "min_swaps"])
def test_only_first_bucket_waits_with_enough_memory(order):
    config = one_type(16, bucket_order=order)
    orders = [iteration_order(config, seed=3, number=number) for number in range(1, 5)]
    assert simulate(config, orders, dict.fromkeys(partition_keys(config), 1)).waits == len(set(orders[0][0]))


def traffic(order, buffer, iterations=4):
    config = one_type(16, bucket_order=order, partition_buffer=buffer)
    orders = [iteration_order(config, seed=0, number=number) for number in range(1, iterations + 1)]
    loads, waits, peak = simulate(config, orders, dict.fromkeys(partition_keys(config), 10))
    return loads / iterations, waits / iterations, peak


@pytest.mark.parametrize("buffer", [3, 4, 6, 8, 12])
def test_min_swaps_is_near_the_lower_bound(buffer):
    """One place is for the next partition.

    For the others, Marius' paper has the fewest swaps once they are full.
    """
    held = buffer - 1
    least = math.ceil((16 * 15 - held * (held - 1)) / 2 / (held - 1))
    loads, _, _ = traffic("min_swaps", buffer)
    assert loads < least + held
    assert all(loads < traffic(order, buffer)[0] for order in ("random", "affinity", "inside_out", "outside_in"))


def test_min_swaps_halves_the_traffic_of_pbg():
    """PBG holds two partitions, and rewrites them between epochs."""
    assert traffic("inside_out", 2)[0] > 2 * traffic("min_swaps", None)[0]


def test_peak_is_that_of_largest_simultaneous_partitions():
    config = one_type(4, partition_buffer=2)
    sizes = {PartitionKey("n", number): size for number, size in enumerate((100, 10, 1, 1))}
    orders = [iteration_order(config, seed=0, number=number) for number in (1, 2)]
    assert simulate(config, orders, sizes).peak_bytes == 110
    assert simulate(config, [[Bucket(2, 3), Bucket(3, 3), Bucket(1, 3)]], sizes).peak_bytes == 11
    assert traffic("inside_out", 5)[2] == 50


def test_documented_figures_are_right():
    text = (Path(__file__).parents[2] / "docs/pbg-config.md").read_text()
    rows = re.findall(r"^\| (\d+)(?: \(PBG's\))? \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    assert len(rows) == 5
    for buffer, *figures in rows:
        for order, told in zip(("random", "affinity", "inside_out", "min_swaps"), figures, strict=True):
            assert abs(traffic(order, int(buffer), iterations=8)[0] - int(told)) <= 0.5


def test_partitions_that_all_fit_are_read_once():
    assert traffic("random", 16, iterations=3) == (16 / 3, 2 / 3, 160)


@pytest.mark.parametrize(("lhs", "rhs"), [(8, 8), (6, 12), (12, 6)])
@pytest.mark.parametrize("buffer", [2, 3])
def test_sides_of_different_types_are_swapped_apart(lhs, rhs, buffer):
    def loads(order):
        config = make_config(
            {"user": lhs, "item": rhs}, [("user", "item")], bucket_order=order, partition_buffer=buffer
        )
        orders = [iteration_order(config, seed=1, number=number) for number in (1, 2, 3)]
        return simulate(config, orders, dict.fromkeys(partition_keys(config), 1))

    found = loads("min_swaps")
    assert all(found.loads < 0.5 * loads(order).loads for order in ("random", "affinity", "inside_out"))
    assert found.waits == 2
