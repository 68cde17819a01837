"""Search for the best candidates of each query, in bounded memory.

All entities of a type are searched.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from pbg_tasks.errors import FormatError

if TYPE_CHECKING:
    from torch import Tensor

    from pbg_tasks.api.vectors import Vectors
    from pbg_tasks.evaluate.filters import Answers

BLOCK_ROWS = 4096
TILE_QUERIES = 1024  # the scores of a tile take 16 MiB
# Products over a block round differently from a comparison of two rows. So the final order is decided by comparisons of
# rows, among some more candidates than requested.
SPARE = 32
_MANY = 4  # from this multiple of the kept hits on, finding the best first is faster
# A forked process has none of the threads of torch's OpenMP, and would wait for them for ever.
os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


class Metric(Protocol):
    """Comparison of prepared queries with candidates; higher is better."""

    def candidates(self, raw_KD: Tensor) -> Tensor:
        """Return candidates from raw embeddings."""
        ...

    def score(self, query_QD: Tensor, candidate_KD: Tensor) -> Tensor:
        """Compare all queries with all candidates: (Q, K)."""
        ...

    def score_pairs(self, query_ND: Tensor, candidate_ND: Tensor) -> Tensor:
        """Compare queries with candidates row by row: (N,)."""
        ...


class Best:
    """The best candidates so far of Q queries.

    Among equal scores the lower number counts as better. Candidates are added in ascending order of their numbers.

    Args:
        queries: Q.
        count: number of candidates that are kept for each.
    """

    def __init__(self, queries: int, count: int) -> None:
        self._queries, self._count = queries, count
        self._floor = torch.full((queries, 1), -torch.inf)
        self._pieces: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._waiting = 0

    def add(self, first: int, score_QK: Tensor) -> None:
        """Add the scores of candidates ``first`` and up; -inf leaves one out.

        Raises:
            FormatError: a score is not a number, which only damaged embeddings give.
        """
        hit_QK = ~(score_QK <= self._floor)  # also true for NaN
        if int(hit_QK.count_nonzero()) > _MANY * self._queries * self._count:
            top_QT = torch.topk(score_QK, min(self._count, score_QK.shape[1])).values
            hit_QK &= ~(score_QK < top_QT[:, -1:])
        row, column = torch.nonzero(hit_QK, as_tuple=True)
        score = score_QK[row, column]
        if torch.isnan(score).any():
            raise FormatError("a score is not a number: the checkpoint holds embeddings that are not finite")
        self._pieces.append((row.numpy(), first + column.numpy(), score.numpy()))
        self._waiting += len(row)
        if self._waiting >= self._queries * self._count:  # sorting only a few would take longer than scoring
            self._merge()

    def _merge(self) -> tuple[np.ndarray, np.ndarray]:
        row, number, score = (np.concatenate(parts) for parts in zip(*self._pieces, strict=True))
        order = np.lexsort((number, -score, row))
        starts = np.searchsorted(row[order], np.arange(self._queries))
        kept = order[np.arange(len(order)) - starts[row[order]] < self._count]
        full = np.bincount(row, minlength=self._queries) >= self._count
        worst = order[starts[full] + self._count - 1]
        self._floor[torch.from_numpy(full), 0] = torch.from_numpy(score[worst])
        self._pieces, self._waiting = [(row[kept], number[kept], score[kept])], 0
        return row[kept], number[kept]

    def candidates(self) -> list[np.ndarray]:
        """Return the numbers of each query's best, ascending, int64 (<= count,) each."""
        if not self._pieces:
            return [np.empty(0, np.int64)] * self._queries
        row, number = self._merge()
        return [np.sort(part) for part in np.split(number, np.searchsorted(row, np.arange(1, self._queries)))]


def best(
    metric: Metric, query_QD: Tensor, vectors: Vectors, count: int, excluded: Answers | None = None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Search all entities of a type that are not hidden.

    Args:
        metric: compares.
        query_QD: prepared queries.
        vectors: of the type.
        count: number of answers of each query.
        excluded: entities that may not be answers, by query.

    Returns:
        For each query the numbers, int64 (<= count,), and scores, float32, best first; equal scores by number.

    Raises:
        FormatError: the checkpoint holds embeddings that are not finite.
    """
    results = []
    for start in range(0, len(query_QD), TILE_QUERIES):
        tile_QD = query_QD[start : start + TILE_QUERIES]
        pool = Best(len(tile_QD), min(count + SPARE, len(vectors)))
        queries = np.arange(start, start + len(tile_QD))
        for first, block in vectors.blocks(BLOCK_ROWS):
            raw_KD = torch.from_numpy(block)
            score_QK = metric.score(tile_QD, metric.candidates(raw_KD))
            if excluded is not None:
                bounds, number = excluded.between(queries, first, first + len(raw_KD))
                score_QK[np.repeat(np.arange(len(queries)), np.diff(bounds)), number - first] = -torch.inf
            begin, end = np.searchsorted(vectors.hidden, (first, first + len(raw_KD)))
            score_QK[:, vectors.hidden[begin:end] - first] = -torch.inf
            pool.add(first, score_QK)
        for query_D, number in zip(tile_QD, pool.candidates(), strict=True):
            results.append(_ranked(metric, query_D, vectors, number, count))
    return results


def _ranked(
    metric: Metric, query_D: Tensor, vectors: Vectors, number: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Score candidates row by row and return the best."""
    candidate_ND = metric.candidates(torch.from_numpy(vectors.rows(number)))
    score = metric.score_pairs(query_D.expand_as(candidate_ND), candidate_ND).numpy()
    order = np.lexsort((number, -score))[:count]
    return number[order], score[order]
