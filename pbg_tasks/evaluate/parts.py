"""Parts: questions that are scored together, with their held-out edges.

One thread compares a part with one block at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from pbg_tasks.evaluate.comparison import Tile, compare
from pbg_tasks.evaluate.ties import tie_from

if TYPE_CHECKING:
    from torch import Tensor

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.evaluate.filters import Answers
    from pbg_tasks.evaluate.tables import Block
    from pbg_tasks.model.parameters import Side
    from pbg_tasks.model.scoring import RelationScorer

MAX_SETTLED = 1 / 1024
"""Largest share of a tile's scores that may be computed again in float64. Where more scores are that close, a model has
collapsed.
"""


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
    """

    config: ModelConfig
    scorer: RelationScorer
    predict: Side
    asked: np.ndarray
    query_QD: Tensor
    edges: np.ndarray
    question: np.ndarray
    true: np.ndarray
    true_ND: Tensor
    ties: np.ndarray
    wins: np.ndarray

    def compare(self, block: Block, answers: Answers, scores: int) -> np.ndarray:
        """Count a block's candidates that are no worse than true entities.

        Args:
            block: candidates.
            answers: known answers, of the candidates only.
            scores: number of scores to compute at a time.

        Returns:
            int64 (2, N): number of candidates, and number of known answers among them.
        """
        candidate_KD = self.scorer.candidates(torch.from_numpy(block.rows), predict=self.predict)
        own = block.columns(self.true)
        start, known = answers.between(self.asked, int(block.numbers[0]), int(block.numbers[-1]) + 1)
        columns = block.columns(known)
        counts = np.empty((2, len(self.edges)), np.int64)
        step = max(scores // len(block.numbers), 1)
        close: list[np.ndarray] = []  # settled together, which costs less than tile by tile
        for first in range(0, len(self.asked), step):
            begin, end = np.searchsorted(self.question, (first, first + step))
            tile = Tile(
                scores=self.scorer.score(self.query_QD[first : first + step], candidate_KD).numpy(),
                question=self.question[begin:end] - first,
                ties=self.ties[begin:end],
                wins=self.wins[begin:end],
                own=own[begin:end],
                answer_start=start[first : first + step + 1],
                answers=columns,
            )
            found = compare(tile, int(2 * (end - begin) + MAX_SETTLED * tile.scores.size))
            counts[:, begin:end] = found.no_worse, found.known
            if found.close is not None and len(found.close):
                close.append(found.close + np.array((begin, 0)))
        if close:
            edge, column = np.concatenate(close).T
            worse = self._worse(edge, candidate_KD[torch.from_numpy(column)])
            edge, column = edge[worse], column[worse]
            np.subtract.at(counts[0], edge, 1)
            is_known = answers.hold(self.asked[self.question[edge]], block.numbers[column])
            np.subtract.at(counts[1], edge[is_known], 1)
        return counts

    def _worse(self, edge: np.ndarray, candidate_MD: Tensor) -> np.ndarray:
        """Return whether candidates are worse than true entities: bool (M,).

        Scores are exact, and the true entities are those of the edges.
        """
        query_MD = self.query_QD[torch.from_numpy(self.question[edge])].double()
        true_MD = self.true_ND[torch.from_numpy(edge)].double()
        score_M = self.scorer.score_pairs(query_MD, true_MD)
        lowest_M = tie_from(self.config, query_MD, true_MD, score_M, exact=True)
        worse: np.ndarray = (self.scorer.score_pairs(query_MD, candidate_MD.double()) < lowest_M).numpy()
        return worse
