"""Figures of a snapshot against those of snapshots before it: volume, degrees, columns."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, zip_longest
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WINDOWS = (7, 28)
"""Over how many of the last snapshots a volume is compared."""


@dataclass(frozen=True, slots=True)
class Volume:
    """Rows against those of earlier snapshots.

    Attributes:
        window: how many of the last snapshots are asked for.
        snapshots: how many of them there are.
        median: of their rows.
        ratio: the snapshot's rows against that.
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
    """Return the Kolmogorov-Smirnov distance of two distributions of degrees, as far as powers of two tell.

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
    """Say how the columns of a snapshot's files differ from those before, a sentence each.

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
