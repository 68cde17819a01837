"""Ranks of held-out edges against all entities of a type, over all partitions, raw and filtered.

Candidates stream by in blocks, each compared with every query while it is in memory. A candidate that ties with the
true entity counts as better (as in PBG), and so does one whose score is not a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from pbg_tasks.formats.embeddings import iter_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pbg_tasks.evaluate.filters import KnownPairs, Side
    from pbg_tasks.model.scoring import RelationScorer
    from pbg_tasks.progress import Progress

# Blocks of scores that stay in the processor's cache: twice as fast as large ones.
QUERY_ROWS = 512
BLOCK_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Ranks:
    """Ranks of Q queries, from 1, and the number of candidates each was ranked among.

    Attributes:
        raw: int64 (Q,).
        filtered: int64 (Q,).
        raw_candidates: int64 (Q,).
        filtered_candidates: int64 (Q,).
    """

    raw: np.ndarray
    filtered: np.ndarray
    raw_candidates: np.ndarray
    filtered_candidates: np.ndarray


class EntityTable:
    """The embeddings of one entity type, in files.

    Args:
        paths: file of each partition, in order.
        bases: first number of each partition, then the total.
        dimension: of the embeddings.
    """

    def __init__(self, paths: list[Path], bases: np.ndarray, dimension: int) -> None:
        self._paths, self._bases, self._dimension = paths, bases, dimension

    def blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (number of the first entity, float32 (<= rows, D)) over all partitions."""
        for partition, path in enumerate(self._paths):
            count = int(self._bases[partition + 1] - self._bases[partition])
            for start, block in iter_blocks(path, rows, count=count, dimension=self._dimension):
                yield int(self._bases[partition]) + start, block

    def gather(self, numbers: np.ndarray) -> torch.Tensor:
        """Return the rows of some entities, float32 (N, D)."""
        result = np.empty((len(numbers), self._dimension), np.float32)
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        for first, block in self.blocks(1 << 17):
            start, stop = np.searchsorted(ordered, (first, first + len(block)))
            result[order[start:stop]] = block[ordered[start:stop] - first]
        return torch.from_numpy(result)


@dataclass(frozen=True, slots=True)
class Queries:
    """Questions of one relation scorer and side.

    Attributes:
        scorer: of the relation.
        predict: side of the candidates.
        prepared: (Q, D), what candidates are compared with.
        true: int64 (Q,), number of the right entity.
        true_rows: (Q, D), its raw embedding.
        known: other right entities.
        sample: sorted numbers of the candidates; None means everyone.
    """

    scorer: RelationScorer
    predict: Side
    prepared: torch.Tensor
    true: np.ndarray
    true_rows: torch.Tensor
    known: KnownPairs
    sample: np.ndarray | None

    def true_scores(self) -> torch.Tensor:
        """Score the right entities with the same matrix product as all others, so that equal rows tie exactly."""
        candidates = self.scorer.candidates(self.true_rows, predict=self.predict)
        pieces = [
            self.scorer.score(self.prepared[start : start + QUERY_ROWS], candidates[start : start + QUERY_ROWS])
            for start in range(0, len(self.true), QUERY_ROWS)
        ]
        return torch.cat([piece.diagonal() for piece in pieces])


def block_rows(memory_bytes: int, dimension: int) -> int:
    """Return how many candidates a block may have for scores, embeddings and their prepared copies to fit."""
    per_row = 4 * (2 * QUERY_ROWS + 4 * dimension)
    return int(np.clip(memory_bytes // 4 // per_row, 256, BLOCK_ROWS))


def rank(queries: Queries, table: EntityTable, total: int, *, rows: int, progress: Progress) -> Ranks:
    """Rank the right entity of each query.

    Args:
        queries: the questions.
        table: embeddings of the predicted type.
        total: how many entities it has.
        rows: candidates a block.
        progress: counts scores.
    """
    count = len(queries.true)
    true_scores = queries.true_scores()
    better = np.zeros(count, np.int64)
    known_better = np.zeros(count, np.int64)
    known = _in_sample(queries.known, queries.sample)
    for first, raw in table.blocks(rows):
        block = _Block.of(first, raw, queries.sample)
        if not len(block.numbers):
            continue
        candidates = queries.scorer.candidates(torch.from_numpy(block.rows), predict=queries.predict)
        for start in range(0, count, QUERY_ROWS):
            stop = min(start + QUERY_ROWS, count)
            scores = queries.scorer.score(queries.prepared[start:stop], candidates)
            worse = scores < true_scores[start:stop].unsqueeze(1)  # False for a score that is not a number
            own_rows, own_columns = block.places(queries.true[start:stop])
            worse[own_rows, own_columns] = True
            better[start:stop] += len(block.numbers) - np.count_nonzero(worse.numpy(), axis=1)
            known_better[start:stop] += _beaten_by_known(known, block, worse, start, stop)
            progress.advance(worse.numel())
    sample_size = total if queries.sample is None else len(queries.sample)
    in_sample = np.ones(count, bool) if queries.sample is None else np.isin(queries.true, queries.sample)
    raw_candidates = np.full(count, sample_size) + ~in_sample
    known_counts = np.bincount(known.query, minlength=count)
    return Ranks(1 + better, 1 + better - known_better, raw_candidates, raw_candidates - known_counts)


@dataclass(frozen=True, slots=True)
class _Block:
    """Candidates in memory: their numbers, ascending, and raw embeddings."""

    numbers: np.ndarray
    rows: np.ndarray

    @classmethod
    def of(cls, first: int, raw: np.ndarray, sample: np.ndarray | None) -> _Block:
        if sample is None:
            return cls(np.arange(first, first + len(raw)), raw)
        start, stop = np.searchsorted(sample, (first, first + len(raw)))
        numbers = sample[start:stop]
        return cls(numbers, raw[numbers - first])

    def places(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which of ``numbers`` are in the block, and in which columns."""
        at = np.searchsorted(self.numbers, numbers)
        inside = np.flatnonzero(
            (at < len(self.numbers)) & (self.numbers[np.minimum(at, len(self.numbers) - 1)] == numbers)
        )
        return inside, at[inside]


def _in_sample(known: KnownPairs, sample: np.ndarray | None) -> KnownPairs:
    if sample is None:
        return known
    kept = np.isin(known.candidate, sample)
    return type(known)(known.query[kept], known.candidate[kept])


def _beaten_by_known(known: KnownPairs, block: _Block, worse: torch.Tensor, start: int, stop: int) -> np.ndarray:
    """Count, for each query, the other right entities in the block that are not worse."""
    first, last = np.searchsorted(known.query, (start, stop))
    inside, columns = block.places(known.candidate[first:last])
    rows = known.query[first:last][inside] - start
    not_worse = ~worse[rows, columns].numpy()
    counted: np.ndarray = np.bincount(rows[not_worse], minlength=stop - start)
    return counted


def tables(
    paths: Mapping[tuple[str, int], Path], bases: Mapping[str, np.ndarray], dimensions: Mapping[str, int]
) -> dict[str, EntityTable]:
    """Return the table of every entity type."""
    return {
        entity: EntityTable([paths[entity, p] for p in range(len(ends) - 1)], ends, dimensions[entity])
        for entity, ends in bases.items()
    }
