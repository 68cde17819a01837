"""Parts: questions that are scored together, with their held-out edges.

One thread compares a part with one block at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.config.comparators import is_product
from pbg_tasks.evaluate.comparison import Asked, Tile, compare, compare_products
from pbg_tasks.evaluate.ties import tie_from
from pbg_tasks.native import library

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.evaluate.comparison import Products
    from pbg_tasks.evaluate.filters import Answers
    from pbg_tasks.evaluate.tables import Block
    from pbg_tasks.model.arrays import Scorer
    from pbg_tasks.model.parameters import Side

MAX_SETTLED = 1 / 1024
"""Largest share of a tile's scores that may be computed again in float64. Where more scores are that close, a model has
collapsed.
"""


def takes_no_tiles(config: ModelConfig, products: Products) -> bool:
    """Whether a GPU or the native library compares a model's inner products."""
    return is_product(config) and (products is not compare_products or library() is not None)


@dataclass(frozen=True, slots=True)
class Part:
    """Q questions of one scorer and the N edges that ask them.

    Attributes:
        config: the model.
        scorer: of the questions' relations.
        predict: side of the answers.
        asked: int64 (Q,), the questions.
        query_QD: prepared.
        edges: int64 (N,), rows of the held-out edges, ordered by question.
        question: int64 (N,), ascending, position in ``asked`` of each edge's question.
        true: int64 (N,), numbers of the true entities.
        true_ND: same, prepared.
        ties: float32 (N,), lowest score with which a candidate may tie with the true entity, given the rounding.
        wins: float32 (N,), highest such score.
        unsettled: see ``ranking.Model``.
        products: same.
    """

    config: ModelConfig
    scorer: Scorer
    predict: Side
    asked: np.ndarray
    query_QD: np.ndarray
    edges: np.ndarray
    question: np.ndarray
    true: np.ndarray
    true_ND: np.ndarray
    ties: np.ndarray
    wins: np.ndarray
    unsettled: list[np.ndarray]
    products: Products

    def compare(self, block: Block, answers: Answers, scores: int) -> np.ndarray:
        """Count a block's candidates that are no worse than true entities.

        Args:
            block: candidates.
            answers: known answers, of the candidates only.
            scores: number of scores to compute at a time.

        Returns:
            int64 (2, N): number of candidates, and number of known answers among them.
        """
        candidate_KD = self.scorer.candidates(block.rows, predict=self.predict)
        own = block.columns(self.true)
        start, known = answers.between(self.asked, int(block.numbers[0]), int(block.numbers[-1]) + 1)
        columns = block.columns(known)
        asked = Asked(self.question, self.ties, self.wins, own, start, columns)
        counts, close = self._products(candidate_KD, asked, scores) or self._tiles(candidate_KD, asked, scores)
        if len(close):
            edge, column = close.T
            worse = self._worse(edge, candidate_KD[column])
            edge, column = edge[worse], column[worse]
            np.subtract.at(counts[0], edge, 1)
            is_known = answers.hold(self.asked[self.question[edge]], block.numbers[column])
            np.subtract.at(counts[1], edge[is_known], 1)
        return counts

    def _products(self, candidate_KD: np.ndarray, asked: Asked, scores: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return what ``_tiles`` does, without tiles.

        None is returned where there have to be tiles: also where one has so many close candidates that none of them are
        settled.
        """
        if not takes_no_tiles(self.config, self.products):
            return None
        limits = [(begin, end, limit) for _, begin, end, limit in self._steps(len(candidate_KD), scores)]
        found = self.products(self.query_QD, candidate_KD, asked, sum(limit for _, _, limit in limits))
        if found is None or found.close is None:
            return None
        of_edge = np.cumsum([0, *np.bincount(found.close[:, 0], minlength=len(self.edges)).tolist()])
        if any(of_edge[end] - of_edge[begin] > limit for begin, end, limit in limits):
            return None
        return np.stack((found.no_worse, found.known)), found.close

    def _tiles(self, candidate_KD: np.ndarray, asked: Asked, scores: int) -> tuple[np.ndarray, np.ndarray]:
        """Count tile by tile.

        Returns:
            int64 (2, N), counts that include the close candidates; and int64 (M, 2), edge and column of each of them
            that is to be settled. They are settled together, which costs less than tile by tile.
        """
        counts, close = np.empty((2, len(self.edges)), np.int64), [np.empty((0, 2), np.int64)]
        for first, begin, end, limit in self._steps(len(candidate_KD), scores):
            stop = min(first + max(scores // len(candidate_KD), 1), len(self.asked))
            tile = Tile(
                scores=self.scorer.score(self.query_QD[first:stop], candidate_KD),
                question=asked.question[begin:end] - first,
                ties=asked.ties[begin:end],
                wins=asked.wins[begin:end],
                own=asked.own[begin:end],
                answer_start=asked.answer_start[first : stop + 1],
                answers=asked.answers,
            )
            found = compare(tile, limit)
            counts[:, begin:end] = found.no_worse, found.known
            if found.close is None:
                self.unsettled.append(self.edges[begin:end])
            else:
                close.append(found.close + np.array((begin, 0)))
        return counts, np.concatenate(close)

    def _steps(self, candidates: int, scores: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (first question, first edge, end of edges, limit) of tiles.

        The limit is that of listed close candidates.
        """
        step = max(scores // candidates, 1)
        for first in range(0, len(self.asked), step):
            begin, end = np.searchsorted(self.question, (first, first + step)).tolist()
            questions = min(step, len(self.asked) - first)
            yield first, begin, end, int(2 * (end - begin) + MAX_SETTLED * questions * candidates)

    def _worse(self, edge: np.ndarray, candidate_MD: np.ndarray) -> np.ndarray:
        """Return whether candidates are worse than true entities: bool (M,).

        Scores are exact, and the true entities are those of the edges.
        """
        query_MD = self.query_QD[self.question[edge]].astype(np.float64)
        true_MD = self.true_ND[edge].astype(np.float64)
        score_M = self.scorer.score_pairs(query_MD, true_MD)
        lowest_M = tie_from(self.config, query_MD, true_MD, score_M, exact=True)
        worse: np.ndarray = self.scorer.score_pairs(query_MD, candidate_MD.astype(np.float64)) < lowest_M
        return worse
