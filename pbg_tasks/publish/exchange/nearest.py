"""Nearest vectors, as an index finds them: form and recall.

A finished index or table is asked for the neighbours of a sample of its own vectors. Its recall is the share of them
that are as near as the k nearest, found by comparing all vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from pbg_tasks.config.comparators import facts_of
from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.publish.exchange.contents import EntityRows

Metric = Literal["l2", "cosine", "dot"]
_SHORTEST = 1e-12


class Recall:
    """Comparison of an index's results with the k nearest vectors.

    The vectors are given block by block. A neighbour that an index found counts when it is as near as the k-th nearest:
    vectors at equal distances are as good as each other.

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
        self._numbers_S, self._queries_SD = numbers_S, queries_SD
        self._distance = distance
        others = found_SK != numbers_S[:, None]
        first = np.argsort(~others, axis=1, kind="stable")[:, :neighbors]  # the first k of the others
        self._found_SK = np.take_along_axis(np.where(others, found_SK, -1), first, axis=1)
        self._found_score_SK = np.full(self._found_SK.shape, -np.inf, np.float32)
        self._best_SK = np.full((len(numbers_S), neighbors), -np.inf, np.float32)
        self._start = 0

    def compare(self, block_ND: np.ndarray) -> None:
        """Compare with the next rows, float32 (N, D)."""
        stop, neighbors = self._start + len(block_ND), self._best_SK.shape[1]
        scores_SN = self._queries_SD @ block_ND.T
        if self._distance:  # the query's own square is the same for all rows, so it is left out
            scores_SN = 2 * scores_SN - np.square(block_ND).sum(axis=1)
        query, place = np.nonzero((self._found_SK >= self._start) & (self._found_SK < stop))
        self._found_score_SK[query, place] = scores_SN[query, self._found_SK[query, place] - self._start]
        own = np.flatnonzero((self._numbers_S >= self._start) & (self._numbers_S < stop))
        scores_SN[own, self._numbers_S[own] - self._start] = -np.inf
        joined = np.concatenate([self._best_SK, scores_SN], axis=1)
        self._best_SK = np.partition(joined, -neighbors, axis=1)[:, -neighbors:]
        self._start = stop

    def value(self) -> float:
        """Return the share of the k nearest that the index found.

        It is taken over all queries.
        """
        worst_S1 = self._best_SK.min(axis=1, keepdims=True)
        return float(((self._found_score_SK >= worst_S1) & (self._found_SK >= 0)).mean())


@dataclass(frozen=True, slots=True)
class Form:
    """Form of vectors in an index, and how it compares them.

    Attributes:
        distance: whether near means a small Euclidean distance; else, a large inner product.
        normalized: whether vectors have length 1.
        skipped: number of the first dimensions that are left out.
    """

    distance: bool
    normalized: bool
    skipped: int

    @classmethod
    def of(cls, config: ModelConfig, refusal: str) -> Self:
        """Return the form for a model.

        Args:
            config: of the model.
            refusal: error for a comparator that an index has no metric for.

        Raises:
            ConfigError: no metric of an index compares as the model's comparator does.
        """
        facts = facts_of(config.comparator)
        if facts.metric is None:
            raise ConfigError(refusal)
        return cls(facts.metric == "l2", normalized=facts.normalized, skipped=1 if config.bias else 0)

    @property
    def metric(self) -> Metric:
        """Name of the metric that compares vectors that are not normalized."""
        if self.distance:
            return "l2"
        return "cosine" if self.normalized else "dot"

    def prepared(self, block_ND: np.ndarray) -> np.ndarray:
        """Return embeddings, float32 (N, D), in the form of the index.

        The result is contiguous float32 (N, D - skipped).
        """
        kept: np.ndarray = np.ascontiguousarray(block_ND[:, self.skipped :])
        if not self.normalized:
            return kept
        lengths = np.linalg.norm(kept, axis=1, keepdims=True)
        scaled: np.ndarray = kept / np.maximum(lengths, _SHORTEST)
        return scaled


def sample(rows: EntityRows, count: int, form: Form) -> tuple[np.ndarray, np.ndarray]:
    """Return a sample of at most ``count`` rows, regularly spaced.

    Returns:
        Numbers, int64 (S,), and prepared vectors, float32 (S, D).
    """
    total = len(rows)
    numbers = np.linspace(0, total - 1, min(count, total)).round().astype(np.int64)
    chosen, start = [], 0
    for block in rows.vectors():
        inside = numbers[(numbers >= start) & (numbers < start + len(block))]
        chosen.append(block[inside - start])
        start += len(block)
    vectors = np.concatenate(chosen) if chosen else np.empty((0, rows.dimension), np.float32)
    return numbers, form.prepared(vectors)


def pieces(rows: EntityRows, queries: int) -> Iterator[np.ndarray]:
    """Yield all vectors in blocks.

    Their scores with all queries take at most 64 MiB.
    """
    step = max(1, (1 << 24) // queries)
    for block in rows.vectors():
        for start in range(0, len(block), step):
            yield block[start : start + step]
