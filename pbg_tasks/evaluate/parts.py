"""Questions that are scored together, with their held-out edges: what one thread compares with one block at a time."""

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
"""Share of a tile's scores that may be computed again in float64; where more are that close, a model has collapsed."""


@dataclass(frozen=True, slots=True)
class Part:
    """Q questions of one scorer and the N edges that ask them.

    Attributes:
        config: the model.
        scorer: of the questions' relations.
        predict: the side asked for.
        asked: int64 (Q,), the questions.
        query_QD: prepared.
        edges: int64 (N,), rows of the held-out edges, ordered by question.
        question: int64 (N,), ascending, which of ``asked`` each edge asks.
        true: int64 (N,), numbers of the true entities.
        true_ND: same, prepared.
        ties: float32 (N,), from which score on a candidate ties with the true entity, as far as rounding tells,
        wins: float32 (N,), and up to which one.
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
        """Count the candidates of a block that are no worse than the true entities.

        Args:
            block: candidates.
            answers: known answers, of the candidates only.
            scores: how many to compute at a time.

        Returns:
            int64 (2, N): how many candidates, and how many of them are known answers.
        """
        candidate_KD = self.scorer.candidates(torch.from_numpy(block.rows), predict=self.predict)
        own = block.columns(self.true)
        start, known = answers.between(self.asked, int(block.numbers[0]), int(block.numbers[-1]) + 1)
        columns = block.columns(known)
        counts = np.empty((2, len(self.edges)), np.int64)
        step = max(scores // len(block.numbers), 1)
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
                edge, column = found.close[:, 0] + begin, found.close[:, 1]
                worse = self._worse(edge, candidate_KD[torch.from_numpy(column)])
                edge, column = edge[worse], column[worse]
                np.subtract.at(counts[0], edge, 1)
                is_known = answers.hold(self.asked[self.question[edge]], block.numbers[column])
                np.subtract.at(counts[1], edge[is_known], 1)
        return counts

    def _worse(self, edge: np.ndarray, candidate_MD: Tensor) -> np.ndarray:
        """Return whether candidates are worse than the true entities of edges by exact scores: bool (M,)."""
        query_MD = self.query_QD[torch.from_numpy(self.question[edge])].double()
        true_MD = self.true_ND[torch.from_numpy(edge)].double()
        score_M = self.scorer.score_pairs(query_MD, true_MD)
        lowest_M = tie_from(self.config, query_MD, true_MD, score_M, exact=True)
        worse: np.ndarray = (self.scorer.score_pairs(query_MD, candidate_MD.double()) < lowest_M).numpy()
        return worse
