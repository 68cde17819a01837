"""Comparison of a snapshot's volume, degrees and columns with earlier ones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, zip_longest
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WINDOWS = (7, 28)
"""Numbers of the last snapshots with which a volume is compared."""


@dataclass(frozen=True, slots=True)
class Volume:
    """Number of rows relative to those of earlier snapshots.

    Attributes:
        window: number of the last snapshots that should be compared.
        snapshots: number of them that exist.
        median: of their rows.
        ratio: the snapshot's rows divided by the median.
    """

    window: int
    snapshots: int
    median: float
    ratio: float


def volumes(edges: int, earlier: Sequence[int]) -> list[Volume]:
    """Compare a snapshot's rows with those of earlier snapshots, oldest first.

    Returns:
        One for each of ``WINDOWS`` that reaches further back than the one before it; none without a snapshot.
    """
    found: list[Volume] = []
    for window in WINDOWS:
        there = earlier[-window:]
        if there and (not found or len(there) > found[-1].snapshots):
            usual = median(there)
            found.append(Volume(window, len(there), usual, round(edges / usual, 6)))
    return found


def degree_distance(before: Sequence[int], now: Sequence[int]) -> float:
    """Return the Kolmogorov-Smirnov distance of two distributions of degrees.

    Degrees are known only to powers of two.

    Args:
        before: number of entities of degree 2**k to 2**(k+1) - 1, by k.
        now: same.

    Returns:
        The largest difference between the shares of entities of a degree below some power of two; 0 when there were
        none before, 1 when there are none any more.
    """
    total_before, total_now = sum(before), sum(now)
    if not total_before or not total_now:
        return 1.0 if total_before else 0.0
    steps = ((then / total_before - here / total_now) for then, here in zip_longest(before, now, fillvalue=0))
    return round(max(map(abs, accumulate(steps))), 6)


def changed_columns(before: Mapping[str, Sequence[str]], now: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the differences between two snapshots' columns, a sentence each.

    Args:
        before: types by the column's name.
        now: same.
    """
    gone = [f"column {name!r} is gone" for name in before if name not in now]
    new = [f"column {name!r} is new" for name in now if name not in before]
    other = [
        f"column {name!r} is {' or '.join(now[name])}, was {' or '.join(types)}"
        for name, types in before.items()
        if name in now and list(now[name]) != list(types)
    ]
    return [*gone, *new, *other]
