"""recall@k of an index of nearest neighbours, against exact search over all vectors."""

from __future__ import annotations

import numpy as np


class Recall:
    """Compares what an index found with the k nearest vectors, which come block by block.

    A neighbour that an index found counts when it is as near as the k-th nearest: vectors at equal distances are as
    good as each other.

    Args:
        numbers_S: int64 (S,), row of each query; a query is no neighbour of itself.
        queries_SD: float32 (S, D).
        found_SK: int64 (S, >= k), rows that the index found, nearest first; -1 for none.
        neighbors: k.
        distance: whether near means a small Euclidean distance instead of a large inner product.
    """

    def __init__(
        self, numbers_S: np.ndarray, queries_SD: np.ndarray, found_SK: np.ndarray, neighbors: int, *, distance: bool
    ) -> None:
        self._numbers_S, self._queries_SD, self._distance = numbers_S, queries_SD, distance
        others = found_SK != numbers_S[:, None]
        first = np.argsort(~others, axis=1, kind="stable")[:, :neighbors]  # the k first of the others
        self._found_SK = np.take_along_axis(np.where(others, found_SK, -1), first, axis=1)
        self._found_score_SK = np.full(self._found_SK.shape, -np.inf, np.float32)
        self._best_SK = np.full((len(numbers_S), neighbors), -np.inf, np.float32)
        self._start = 0

    def compare(self, block_ND: np.ndarray) -> None:
        """Take the next rows, float32 (N, D)."""
        stop, neighbors = self._start + len(block_ND), self._best_SK.shape[1]
        scores_SN = self._queries_SD @ block_ND.T
        if self._distance:  # the query's own square is the same for all
            scores_SN = 2 * scores_SN - np.square(block_ND).sum(axis=1)
        query, place = np.nonzero((self._found_SK >= self._start) & (self._found_SK < stop))
        self._found_score_SK[query, place] = scores_SN[query, self._found_SK[query, place] - self._start]
        own = np.flatnonzero((self._numbers_S >= self._start) & (self._numbers_S < stop))
        scores_SN[own, self._numbers_S[own] - self._start] = -np.inf
        joined = np.concatenate([self._best_SK, scores_SN], axis=1)
        self._best_SK = np.partition(joined, -neighbors, axis=1)[:, -neighbors:]
        self._start = stop

    def value(self) -> float:
        """Return the share of the k nearest that the index found, over all queries."""
        worst_S1 = self._best_SK.min(axis=1, keepdims=True)
        return float(((self._found_score_SK >= worst_S1) & (self._found_SK >= 0)).mean())
