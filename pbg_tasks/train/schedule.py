"""In which order the buckets of an iteration are trained (PBG's ``bucket_order``).

Orders that keep a partition for the next bucket save reading and writing it. Every order yields each bucket of the
``lhs_count`` x ``rhs_count`` grid exactly once, and follows from the seed alone.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Bucket(NamedTuple):
    """Edges from partition ``lhs`` to partition ``rhs``."""

    lhs: int
    rhs: int


def bucket_order(name: str, lhs_count: int, rhs_count: int, *, seed: str) -> list[Bucket]:
    """Return all buckets of the grid in the order ``name``.

    Args:
        name: ``random``, ``affinity``, ``inside_out`` or ``outside_in``.
        lhs_count: partitions of the left-hand side.
        rhs_count: partitions of the right-hand side.
        seed: the order is a function of it and the other arguments.
    """
    return _ORDERS[name](lhs_count, rhs_count, random.Random(seed))  # noqa: S311 - a schedule, not a secret


def grid(lhs_count: int, rhs_count: int) -> list[Bucket]:
    """Return all buckets of ``lhs_count`` x ``rhs_count`` partitions, row by row."""
    return [Bucket(lhs, rhs) for lhs in range(lhs_count) for rhs in range(rhs_count)]


def _random(lhs_count: int, rhs_count: int, rng: random.Random) -> list[Bucket]:
    buckets = grid(lhs_count, rhs_count)
    rng.shuffle(buckets)
    return buckets


def _affinity(lhs_count: int, rhs_count: int, rng: random.Random) -> list[Bucket]:
    """Walk from bucket to bucket, each sharing a partition with the one before while one is left."""
    left = _random(lhs_count, rhs_count, rng)
    order = [left.pop()]
    while left:
        last = order[-1]
        transposed = Bucket(last.rhs, last.lhs)
        sharing = [bucket for bucket in left if bucket.lhs == last.lhs or bucket.rhs == last.rhs]
        chosen = transposed if transposed in left else rng.choice(sharing or left)
        left.remove(chosen)
        order.append(chosen)
    return order


def _layers(lhs_count: int, rhs_count: int, rng: random.Random) -> list[list[Bucket]]:
    """Layer ``i`` holds the buckets whose smaller index is ``i``, a bucket beside its transpose, pairs shuffled."""
    layers: list[list[Bucket]] = []
    for i in range(min(lhs_count, rhs_count)):
        pairs = []
        for k in range(i, max(lhs_count, rhs_count)):
            pair = {Bucket(k, i), Bucket(i, k)}
            inside = sorted(bucket for bucket in pair if bucket.lhs < lhs_count and bucket.rhs < rhs_count)
            rng.shuffle(inside)
            pairs.append(inside)
        rng.shuffle(pairs)
        layers.append([bucket for pair in pairs for bucket in pair])
    return layers


def _outside_in(lhs_count: int, rhs_count: int, rng: random.Random) -> list[Bucket]:
    return [bucket for layer in _layers(lhs_count, rhs_count, rng) for bucket in layer]


def _inside_out(lhs_count: int, rhs_count: int, rng: random.Random) -> list[Bucket]:
    return [bucket for layer in reversed(_layers(lhs_count, rhs_count, rng)) for bucket in layer]


_ORDERS: dict[str, Callable[[int, int, random.Random], list[Bucket]]] = {
    "random": _random,
    "affinity": _affinity,
    "inside_out": _inside_out,
    "outside_in": _outside_in,
}
