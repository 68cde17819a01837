"""Held-out edges seen from one side: what they ask, what is known about it, and how well it is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pbg_tasks.evaluate.filters import AnswerCollector
from pbg_tasks.evaluate.popularity import Popularity
from pbg_tasks.evaluate.questions import Questions
from pbg_tasks.evaluate.ranking import Ranker, Ranks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pbg_tasks.evaluate.ids import Triples
    from pbg_tasks.evaluate.questions import Side
    from pbg_tasks.evaluate.ranking import Model
    from pbg_tasks.evaluate.tables import EntityTable


class SideRanks(NamedTuple):
    """Ranks of all held-out edges on one side.

    Attributes:
        ranks: by the model.
        popular: int64 (N,), filtered, by frequency in training; None when training edges were not given.
    """

    ranks: Ranks
    popular: np.ndarray | None


class OneSide:
    """Collects known and training edges, then ranks.

    Args:
        predict: the side asked for.
        asked: held-out edges (N).
        entities: more than any entity's number.
    """

    def __init__(self, predict: Side, asked: Triples, entities: int) -> None:
        self._questions = Questions.of(asked, predict, entities)
        self._collector = AnswerCollector(self._questions)
        self._popularity: Popularity | None = None

    def add_known(self, piece: Triples) -> None:
        """Take note of edges known to be true."""
        self._collector.add(piece)

    def add_training(self, piece: Triples) -> None:
        """Count edges for the popularity baseline."""
        if self._popularity is None:
            self._popularity = Popularity(self._questions.predict, self._questions.entities)
        self._popularity.add(piece)

    def rank(self, model: Model, of_types: Iterable[tuple[EntityTable, EntityTable, np.ndarray]]) -> SideRanks:
        """Rank the held-out edges.

        Args:
            model: what scores.
            of_types: (table of the left ends, of the right ends, rows of the held-out edges); every edge once.
        """
        answers = self._collector.answers()
        count = len(self._questions.true)
        ranks, popular = Ranks.empty(count), np.zeros(count, np.int64)
        for lhs, rhs, rows in of_types:
            known, asked = (rhs, lhs) if self._questions.predict == "lhs" else (lhs, rhs)
            candidates = asked.only_candidates(answers)
            Ranker(model, self._questions, candidates, known, asked).rank(rows, ranks)
            if self._popularity is not None:
                popular[rows] = self._popularity.ranks(rows, self._questions, candidates, asked)
        return SideRanks(ranks, popular if self._popularity is not None else None)
