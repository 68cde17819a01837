"""Order of the buckets of an iteration (PBG's ``bucket_order``).

Orders that keep a partition for the next bucket save reading and writing it. Every order contains each bucket of the
``lhs_count`` x ``rhs_count`` grid exactly once, and depends on the seed alone.
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


class Rooms(NamedTuple):
    """Most partitions of one entity type in memory.

    Attributes:
        lhs: for a type of the left-hand side.
        rhs: for a type of the right-hand side.
        shared: whether a partitioned type is on both sides, so that partition i is the same on either.
    """

    lhs: int
    rhs: int
    shared: bool


_FEWEST = Rooms(lhs=1, rhs=1, shared=False)


def bucket_order(name: str, lhs_count: int, rhs_count: int, *, seed: str, rooms: Rooms = _FEWEST) -> list[Bucket]:
    """Return all buckets of the grid in the order ``name``.

    Args:
        name: ``random``, ``affinity``, ``inside_out``, ``outside_in`` or ``min_swaps``.
        lhs_count: number of partitions of the left-hand side.
        rhs_count: number of partitions of the right-hand side.
        seed: the order is a function of it and the other arguments.
        rooms: most partitions in memory, for ``min_swaps``.
    """
    rng = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    if name == "min_swaps":
        return _min_swaps(lhs_count, rhs_count, rng, rooms)
    return _ORDERS[name](lhs_count, rhs_count, rng)


def grid(lhs_count: int, rhs_count: int) -> list[Bucket]:
    """Return all buckets of ``lhs_count`` x ``rhs_count`` partitions, row by row."""
    return [Bucket(lhs, rhs) for lhs in range(lhs_count) for rhs in range(rhs_count)]


def _random(lhs_count: int, rhs_count: int, rng: random.Random) -> list[Bucket]:
    buckets = grid(lhs_count, rhs_count)
    rng.shuffle(buckets)
    return buckets


def _affinity(lhs_count: int, rhs_count: int, rng: random.Random) -> list[Bucket]:
    """Order buckets so that each shares a partition with the one before.

    A bucket without such a neighbour follows when none is left.

    A step reads one row and one column of the grid; all remaining buckets are read once a row at most.
    """
    shuffled = _random(lhs_count, rhs_count, rng)
    left = {bucket: place for place, bucket in enumerate(shuffled)}  # in the order of their places, as rows and columns
    rows: list[list[int]] = [[] for _ in range(lhs_count)]
    columns: list[list[int]] = [[] for _ in range(rhs_count)]
    for bucket, place in left.items():
        rows[bucket.lhs].append(place)
        columns[bucket.rhs].append(place)
    order: list[Bucket] = []
    chosen = shuffled[-1]
    while True:
        order.append(chosen)
        row, column = rows[chosen.lhs], columns[chosen.rhs]
        place = left.pop(chosen)
        row.remove(place)
        column.remove(place)
        if not left:
            return order
        transposed = Bucket(chosen.rhs, chosen.lhs)
        chosen = transposed if transposed in left else shuffled[rng.choice(sorted(row + column) or list(left.values()))]


def _layers(lhs_count: int, rhs_count: int, rng: random.Random) -> list[list[Bucket]]:
    """Return the buckets by their smaller index.

    Layer ``i`` has those of smaller index ``i``. A bucket is next to its transpose, and the pairs are shuffled.
    """
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


def _min_swaps(lhs_count: int, rhs_count: int, rng: random.Random, rooms: Rooms) -> list[Bucket]:
    """Return an order that combines partitions in memory with all others.

    In memory are as many partitions as fit beside the one that is read next.
    """
    if rooms.shared:
        return _elimination(lhs_count, max(2, min(rooms.lhs, rooms.rhs) - 1), rng)
    by_lhs, by_rhs = (
        count + -(-count // room) * others
        for count, room, others in ((lhs_count, rooms.lhs, rhs_count), (rhs_count, rooms.rhs, lhs_count))
    )
    if by_lhs <= by_rhs:
        return [Bucket(held, passing) for held, passing in _passes(lhs_count, rhs_count, rooms.lhs, rng)]
    return [Bucket(passing, held) for held, passing in _passes(rhs_count, lhs_count, rooms.rhs, rng)]


def _elimination(count: int, held: int, rng: random.Random) -> list[Bucket]:
    """Combine ``held`` - 1 partitions with all others, then replace them.

    This is Marius' order BETA (Mohoney et al., "Marius: learning massive graph embeddings on a single machine", OSDI
    2021), which is a few per cent above the least possible number of swaps.
    """
    inside: list[int] = []
    outside = _mixed(count, held, rng)
    order: dict[Bucket, None] = {}

    def meet(new: int) -> None:
        order.update(dict.fromkeys(bucket for other in inside for bucket in (Bucket(other, new), Bucket(new, other))))

    while len(inside) < held and outside:
        inside.append(outside.pop(0))
        meet(inside[-1])
    while outside:
        for place, new in enumerate(outside):
            outside[place], inside[-1] = inside[-1], new
            meet(new)
        for place in range(min(held - 1, len(outside))):
            inside[place] = outside.pop(0)
            meet(inside[place])
    return list(order)


def _passes(count: int, others: int, held: int, rng: random.Random) -> list[tuple[int, int]]:
    """Combine ``held`` partitions at a time with the other side.

    The other side is traversed forwards and backwards in turn.
    """
    side, passing = _mixed(count, held, rng), _mixed(others, 1, rng)
    order = []
    for start in range(0, count, held):
        order += [(here, there) for there in passing for here in side[start : start + held]]
        passing.reverse()
    return order


def _mixed(count: int, kept: int, rng: random.Random) -> list[int]:
    """Return 0 to ``count`` - 1, shuffled from ``kept`` on."""
    mixed = list(range(kept, count))
    rng.shuffle(mixed)
    return [*range(min(kept, count)), *mixed]


_ORDERS: dict[str, Callable[[int, int, random.Random], list[Bucket]]] = {
    "random": _random,
    "affinity": _affinity,
    "inside_out": _inside_out,
    "outside_in": _outside_in,
}
