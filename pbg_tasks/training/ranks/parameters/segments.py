"""Segments of a shard: numbers transferred together or not at all."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Span(NamedTuple):
    """Chosen segments that are neighbours.

    Attributes:
        there: slice of their numbers in the shard.
        packed: slice of them among the numbers of all chosen segments, laid end to end.
    """

    there: slice
    packed: slice


class Segments:
    """Bounds of segments.

    Runs of segments are copied as slices; masks of numbers would be ten times slower.

    Args:
        lengths: int64 (K,), numbers in each; none is 0.

    Attributes:
        lengths: the argument.
        size: total of numbers.
    """

    def __init__(self, lengths: np.ndarray) -> None:
        self.lengths = lengths
        self._bounds = np.concatenate(([0], np.cumsum(lengths)))
        self.size = int(self._bounds[-1])

    def differing(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return the segments in which two arrays differ, bool (K,)."""
        differing: np.ndarray = np.logical_or.reduceat(one != other, self._bounds[:-1])
        return differing

    def runs(self, chosen: np.ndarray) -> list[Span]:
        """Return the runs of chosen segments.

        Args:
            chosen: bool (K,).
        """
        edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
        runs, packed = [], 0
        for start, stop in self._bounds[edges].reshape(-1, 2).tolist():
            runs.append(Span(slice(start, stop), slice(packed, packed + stop - start)))
            packed += stop - start
        return runs


def pack(array: np.ndarray, runs: list[Span]) -> np.ndarray:
    """Return a copy of the numbers of runs, end to end."""
    return np.concatenate([array[:0], *(array[run.there] for run in runs)])
