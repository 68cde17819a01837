"""Held-out edges on one side: questions, known answers, and ranks."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.errors import ConfigError
from pbg_tasks.evaluate.filters import AnswerCollector
from pbg_tasks.evaluate.ids import Triples
from pbg_tasks.evaluate.popularity import Popularity
from pbg_tasks.evaluate.questions import Questions
from pbg_tasks.evaluate.ranking import Ranker, Ranks, rank_together

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.evaluate.filters import Answers
    from pbg_tasks.evaluate.ranking import Model
    from pbg_tasks.evaluate.tables import EntityTable
    from pbg_tasks.model.families import Families
    from pbg_tasks.model.parameters import Side

    OfTypes = tuple[EntityTable, EntityTable, np.ndarray]


class OneSide:
    """Collection of known and training edges, and ranking.

    Args:
        predict: side of the answers.
        asked: held-out edges (N).
        entities: a number above any entity's number.
    """

    def __init__(self, predict: Side, asked: Triples, entities: int) -> None:
        self._questions = Questions.of(asked, predict, entities)
        self._collector = AnswerCollector(self._questions)
        self._popularity: Popularity | None = None

    def add_known(self, piece: Triples) -> None:
        """Add edges known to be true."""
        self._collector.add(piece)

    def add_training(self, piece: Triples) -> None:
        """Add training edges to the popularity baseline."""
        if self._popularity is None:
            self._popularity = Popularity(self._questions.predict, self._questions.entities)
        self._popularity.add(piece)

    @cached_property
    def _answers(self) -> Answers:
        return self._collector.answers()

    @property
    def edges(self) -> int:
        """Number of held-out edges."""
        return len(self._questions.true)

    def answers_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the known answers of held-out edges' questions, ascending."""
        _, answers = self._answers.between(np.unique(self._questions.of_edge[rows]), 0, self._questions.entities)
        return np.unique(answers)

    def rankers(
        self, model: Model, of_types: Iterable[OfTypes], counted: np.ndarray | None = None
    ) -> Iterator[tuple[Ranker, np.ndarray]]:
        """Yield rankers of held-out edges, with the rows of the edges.

        Args:
            model: that scores.
            of_types: (table of the left ends, of the right ends, rows of the held-out edges); an edge once at most.
            counted: int64 (2, N), see ``Ranker``; None: candidates are read.
        """
        for known, asked, rows in self._ordered(of_types):
            answers = asked.only_candidates(self._answers)
            yield Ranker(model, self._questions, answers, known, asked, counted), rows

    def rank(self, model: Model, of_types: Iterable[OfTypes], counted: np.ndarray | None = None) -> Ranks:
        """Rank held-out edges; arguments as for ``rankers``.

        Returns:
            The ranks of all held-out edges; zeros for those that are not in ``of_types``.
        """
        ranks = Ranks.empty(self.edges)
        rank_together((ranker, rows, ranks) for ranker, rows in self.rankers(model, of_types, counted))
        return ranks

    def popular(self, of_types: Iterable[OfTypes]) -> np.ndarray | None:
        """Return the filtered ranks by frequency in training, int64 (N,).

        None is returned when training edges were not given.
        """
        if self._popularity is None:
            return None
        ranks = np.zeros(self.edges, np.int64)
        for _, asked, rows in self._ordered(of_types):
            answers = asked.only_candidates(self._answers)
            ranks[rows] = self._popularity.ranks(rows, self._questions, answers, asked)
        return ranks

    def _ordered(self, of_types: Iterable[OfTypes]) -> Iterator[OfTypes]:
        """Yield the table of the known ends first."""
        for lhs, rhs, rows in of_types:
            yield (rhs, lhs, rows) if self._questions.predict == "lhs" else (lhs, rhs, rows)


def rank_sides(model: Model, asking: Mapping[Side, tuple[OneSide, Iterable[OfTypes]]]) -> dict[Side, Ranks]:
    """Rank held-out edges of several sides, as ``OneSide.rank`` does."""
    found = {name: Ranks.empty(side.edges) for name, (side, _) in asking.items()}
    rank_together(
        (ranker, rows, found[name])
        for name, (side, of_types) in asking.items()
        for ranker, rows in side.rankers(model, of_types)
    )
    return found


def exclude_known_ends(
    config: ModelConfig, families: Families, asked: Triples, loops: np.ndarray | None, sides: Mapping[Side, OneSide]
) -> None:
    """Let the known end of each question count as right.

    It is then left out of the filtered ranks. It does not count as right for relations with loops, of which it is a
    possible answer.
    """
    if loops is None:
        raise ConfigError(
            "exclude_self: the model does not record which relations had loops in training, because PBG or an earlier "
            "version wrote it; train it with this version, or leave exclude_self out"
        )
    same = np.array([relation.lhs == relation.rhs for relation in config.relations])[families.first]
    same[np.isin(np.arange(len(same)), loops)] = False
    chosen = asked.select(np.flatnonzero(same[asked.rel]))
    sides["rhs"].add_known(Triples(chosen.lhs, chosen.rel, chosen.lhs))
    sides["lhs"].add_known(Triples(chosen.rhs, chosen.rel, chosen.rhs))
