"""Drift: the distance between the vectors of two nights.

It is measured by the cosine of each entity that both nights know and, for a sample of them, by the share of the nearest
neighbours on which both nights agree. Both are summarised by degree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypedDict

import numpy as np

from pbg_tasks.evaluate.comparison import Asked, compare_products
from pbg_tasks.evaluate.tables import MAX_TILE_SCORES
from pbg_tasks.model.arrays import dots, norms, unit
from pbg_tasks.native import library

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.evaluate.tables import Block, EntityTable
    from pbg_tasks.model.arrays import Likeness

BLOCK_ROWS = 1 << 14
_COSINE_ROWS = 1 << 11  # of both nights, they stay in the cache from one step to the next
ALIGNED_ROWS = 1 << 15
"""Number of rows of a type to which a rotation is fitted."""
_COUNTED_ROWS = 1 << 16
_ROWS_PER_DIMENSION = 10
"""Least rows for each dimension: a rotation fitted to fewer would make different vectors look alike."""
_DECILES = 10
NEIGHBOURS = 10
QUERIES = 500
_GATHERED_ROWS = 1 << 13
_FEWEST_ROWS = 256
# Candidates of a query in a piece, on average; of more, the best are chosen from all scores. A piece as large as all
# before it has some ``NEIGHBOURS``.
_MOST_BETTER = 32


@dataclass(frozen=True, slots=True)
class View:
    """Embeddings of one type in one night.

    Attributes:
        table: of the entities that both nights know, numbered as tonight.
        similarity: compares them.
    """

    table: EntityTable
    similarity: Likeness

    def among(self, candidates: np.ndarray, partition: int) -> View:
        """Return the same embeddings with other candidates, all of one partition."""
        return View(self.table.among(candidates, {partition}), self.similarity)


def draw(known: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw ``count`` of the entities that both nights know, or all.

    The result is int64, ascending numbers. No array of all numbers is made, because a part draws as the whole does.

    Args:
        known: bool (N,), whether both nights know each entity.
        count: largest number of entities.
        seed: of the choice.
    """
    starts = np.arange(0, len(known), _COUNTED_ROWS)
    ends = np.cumsum(np.add.reduceat(known, starts, dtype=np.int64)) if len(known) else starts
    total = int(ends[-1]) if len(ends) else 0
    if total <= count:
        return np.flatnonzero(known)
    places = np.sort(np.random.default_rng(seed).choice(total, size=count, replace=False, shuffle=False))
    found = np.empty(count, np.int64)
    stretch = np.searchsorted(ends, places, side="right")
    for number in np.unique(stretch).tolist():
        here, first = stretch == number, int(starts[number])
        before = int(ends[number - 1]) if number else 0
        found[here] = first + np.flatnonzero(known[first : first + _COUNTED_ROWS])[places[here] - before]
    return found


def aligned(now: View, before: View, chosen: np.ndarray) -> np.ndarray | None:
    """Return the rotation that brings the earlier vectors nearest to tonight's.

    It solves the orthogonal Procrustes problem (Schoenemann 1966) on unit vectors of a sample.

    Args:
        now: tonight.
        before: the other night.
        chosen: int64 (S,), ascending numbers of entities that both know: the sample.

    Returns:
        float32 (D, D), or None where vectors have other dimensions or are too few for a fit.
    """
    now_SD, before_SD = (unit(view.similarity.vectors(view.table.gather(chosen, BLOCK_ROWS))) for view in (now, before))
    dimension = now_SD.shape[1]
    if before_SD.shape[1] != dimension or len(chosen) < _ROWS_PER_DIMENSION * dimension:
        return None
    left, _, right = np.linalg.svd((before_SD.T @ now_SD).astype(np.float64))
    rotation_DD: np.ndarray = (left @ right).astype(np.float32)
    return rotation_DD


def cosines(now: View, before: View, ours: Block, theirs: Block, rotation_DD: np.ndarray | None = None) -> np.ndarray:
    """Return the cosine between the two vectors of each candidate.

    The result is float32 (C,); 0 where a vector is zeros.

    Args:
        now: tonight.
        before: the other night.
        ours: candidates of tonight.
        theirs: the same of the other night.
        rotation_DD: applied first to the vectors of ``before``.
    """
    found = np.empty(len(ours.numbers), np.float32)
    for first in range(0, len(found), _COSINE_ROWS):
        own = slice(first, first + _COSINE_ROWS)
        now_KD, before_KD = now.similarity.vectors(ours.rows[own]), before.similarity.vectors(theirs.rows[own])
        if rotation_DD is not None:
            before_KD = before_KD @ rotation_DD
        both_K = norms(now_KD) * norms(before_KD)
        both_K[both_K == 0] = 1
        found[own] = dots(now_KD, before_KD) / both_K
    return found


@dataclass(frozen=True, slots=True)
class Nearest:
    """Nearest candidates of queries, best first.

    Those of each partition are looked for alone, so that parts that have some of the partitions find what the whole
    does.

    Attributes:
        scores: float32 (Q, ``NEIGHBOURS``), -inf where there are fewer candidates.
        numbers: int64, same shape, -1 there.
    """

    scores: np.ndarray
    numbers: np.ndarray

    def joined(self, later: Nearest) -> Nearest:
        """Return the nearest among the candidates of both.

        Of equal ones, those of the earlier partition come first.
        """
        scores = np.concatenate((self.scores, later.scores), axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :NEIGHBOURS]
        numbers = np.concatenate((self.numbers, later.numbers), axis=1)
        return Nearest(np.take_along_axis(scores, order, axis=1), np.take_along_axis(numbers, order, axis=1))


class NeighbourSearch:
    """Search for the nearest candidates of queries, a block at a time.

    The model's comparator decides, and a query is no neighbour of itself.

    Args:
        view: of the night.
        queries: int64 (Q,), numbers of the queries.
    """

    def __init__(self, view: View, queries: np.ndarray) -> None:
        self._similarity, self._queries = view.similarity, queries
        self._query_QD = view.similarity.candidates(view.table.gather(queries, _GATHERED_ROWS))
        self._grow = view.similarity.is_product and library() is not None
        self.begin()

    def begin(self) -> None:
        """Forget all candidates."""
        shape = len(self._queries), NEIGHBOURS
        self._seen = 0
        self._score_QK, self._number_QK = np.full(shape, -np.inf, np.float32), np.full(shape, -1)

    def nearest(self) -> Nearest:
        """Return the nearest of all candidates since the beginning."""
        return Nearest(self._score_QK, self._number_QK)

    def add(self, block: Block) -> None:
        """Compare the queries with some more candidates."""
        similarity, query_QD = self._similarity, self._query_QD
        score_QK = self._score_QK
        for piece in self._pieces(block):
            candidate_BD, own = similarity.candidates(piece.rows), piece.columns(self._queries)
            better = _better(similarity, query_QD, candidate_BD, own, score_QK[:, -1])
            better_R, score_RB, place_RB = better or _best(similarity, query_QD, candidate_BD, own, score_QK)
            score_RB = np.concatenate((score_QK[better_R], score_RB), axis=1)
            number_RB = np.concatenate((self._number_QK[better_R], piece.numbers[place_RB]), axis=1)
            order_RK = _highest(score_RB, NEIGHBOURS)
            score_QK[better_R] = np.take_along_axis(score_RB, order_RK, axis=1)
            self._number_QK[better_R] = np.take_along_axis(number_RB, order_RK, axis=1)

    def _pieces(self, block: Block) -> Iterator[Block]:
        """Cut a block into pieces, which grow where scores are products.

        The more candidates were seen, the fewer of the next ones are better, and each piece costs some work of its own.
        """
        rows = max(MAX_TILE_SCORES // len(self._queries), _FEWEST_ROWS)  # scores stay in the cache
        first = 0
        while first < len(block.numbers):
            piece = block.cut(first, max(self._seen // rows, 1) * rows if self._grow else rows)
            first += len(piece.numbers)
            self._seen += len(piece.numbers)
            yield piece


def in_step(now: Iterator[Block], before: Iterator[Block]) -> Iterator[tuple[Block, Block]]:
    """Yield blocks of the same candidates from two tables.

    Files with other numbers of rows are read in other blocks.
    """
    ours, theirs = next(now, None), next(before, None)
    while ours is not None and theirs is not None:
        count = min(len(ours.numbers), len(theirs.numbers))
        yield ours.cut(0, count), theirs.cut(0, count)
        ours, theirs = (
            block.cut(count, len(block.numbers)) if count < len(block.numbers) else next(more, None)
            for block, more in ((ours, now), (theirs, before))
        )


def neighbour_overlap(now: Nearest, before: Nearest, candidates: int) -> np.ndarray:
    """Return the share of nearest neighbours common to two nights.

    The result is float32 (Q,), by query; NaN where there is no candidate besides the query. Neighbours are exact, and
    compared within each night, so a rotation between the vectors of the two nights does not matter.

    Args:
        now: tonight.
        before: the other night, among the same candidates.
        candidates: their number.
    """
    count = min(NEIGHBOURS, candidates - 1)
    if count < 1:
        return np.full(len(now.numbers), np.nan, np.float32)
    ours, theirs = now.numbers[:, :count], before.numbers[:, :count]
    agreed: np.ndarray = (ours[:, :, np.newaxis] == theirs[:, np.newaxis, :]).any(axis=2).mean(axis=1, dtype=np.float32)
    return agreed


def _highest(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the columns of each row's highest scores, highest first."""
    columns = np.argpartition(-scores, count - 1, axis=1)[:, :count] if len(scores) else np.empty((0, count), np.int64)
    order = np.argsort(-np.take_along_axis(scores, columns, axis=1), axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1)


def _best(
    similarity: Likeness, query_QD: np.ndarray, candidate_BD: np.ndarray, own: np.ndarray, best_QK: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the best candidates of a block, where one is better.

    Args:
        similarity: of the view.
        query_QD: prepared.
        candidate_BD: prepared.
        own: int64 (Q,), column of each query itself; -1 where the block lacks it.
        best_QK: scores of the best candidates before, highest first.

    Returns:
        The queries (R,), and scores and columns of their best candidates, (R, K) each.
    """
    score_QB = similarity.score(query_QD, candidate_BD)
    (there,) = np.nonzero(own >= 0)
    score_QB[there, own[there]] = -np.inf
    (better_R,) = np.nonzero(score_QB.max(axis=1) > best_QK[:, -1])  # few, after some blocks
    score_RB = score_QB[better_R]
    place_RK = _highest(score_RB, min(best_QK.shape[1], len(candidate_BD)))
    return better_R, np.take_along_axis(score_RB, place_RK, axis=1), place_RK


def _better(
    similarity: Likeness, query_QD: np.ndarray, candidate_BD: np.ndarray, own: np.ndarray, lowest_Q: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return what ``_best`` does, by products that need no matrix of scores.

    None is returned where there are too many better ones, as in the first block, or where scores are no products.

    Args:
        similarity: of the view.
        query_QD: as for ``_best``, like the next two.
        candidate_BD: same.
        own: same.
        lowest_Q: scores that a candidate has to reach.
    """
    if not similarity.is_product or not np.isfinite(lowest_Q).all():
        return None
    queries = len(query_QD)
    none = np.zeros(queries + 1, np.int64)
    anything = np.full(queries, np.inf, np.float32)
    asked = Asked(np.arange(queries), lowest_Q.copy(), anything, own, none, none[:0])
    found = compare_products(query_QD, candidate_BD, asked, _MOST_BETTER * queries)
    if found is None or found.close is None:
        return None
    query, column = found.close[np.argsort(found.close[:, 0], kind="stable")].T
    better_R, row, count_R = np.unique(query, return_inverse=True, return_counts=True)
    place = np.arange(len(query)) - (count_R.cumsum() - count_R)[row]
    shape = (len(better_R), int(count_R.max(initial=0)))
    best_RB, place_RB = np.full(shape, -np.inf, np.float32), np.zeros(shape, np.int64)
    best_RB[row, place] = similarity.score_pairs(query_QD[query], candidate_BD[column])
    place_RB[row, place] = column
    return better_R, best_RB, place_RB


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of figures; all None where there are none."""

    mean: float | None
    p01: float | None
    p05: float | None
    median: float | None

    @classmethod
    def of(cls, values: np.ndarray) -> Self:
        """Summarise figures, without those that are NaN."""
        values = values[~np.isnan(values)]
        if not len(values):
            return cls(None, None, None, None)
        return cls(mean(values), *(round(value, 6) for value in np.quantile(values, (0.01, 0.05, 0.5)).tolist()))


def mean(values: np.ndarray) -> float | None:
    """Return the mean of figures, without those that are NaN.

    None is returned where there is none.
    """
    values = values[~np.isnan(values)]
    return round(float(values.mean(dtype=np.float64)), 6) if len(values) else None


class DegreeDecile(TypedDict):
    """Drift of the entities of a decile of degree, from 1."""

    decile: int
    min_degree: int
    max_degree: int
    entities: int
    cosine: float | None
    overlap: float | None


def by_degree(degree: np.ndarray, cosine: np.ndarray, overlap: np.ndarray) -> list[DegreeDecile]:
    """Summarise drift by deciles of degree.

    Entities of one degree are in one decile, that of their lowest rank, so some deciles may be empty: those are left
    out.

    Args:
        degree: int64 (C,), tonight's edges of each entity both nights know.
        cosine: float32 (C,), NaN where there is none.
        overlap: same.
    """
    values, counts = np.unique(degree, return_counts=True)
    # Ranks are looked up among the degrees, of which there are few, and not among those of all entities.
    lowest = np.cumsum(counts) - counts
    decile = (lowest * _DECILES // max(len(degree), 1))[np.searchsorted(values, degree)]
    rows: list[DegreeDecile] = []
    for number in np.unique(decile).tolist():
        own = decile == number
        rows.append(
            {
                "decile": number + 1,
                "min_degree": int(degree[own].min()),
                "max_degree": int(degree[own].max()),
                "entities": int(own.sum()),
                "cosine": mean(cosine[own]),
                "overlap": mean(overlap[own]),
            }
        )
    return rows
