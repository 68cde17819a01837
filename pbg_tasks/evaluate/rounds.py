"""Ranking of a sample of held-out edges, round by round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.evaluate.paired_comparison import mean_reciprocal
from pbg_tasks.evaluate.ranking import Model, Ranks
from pbg_tasks.evaluate.sampling import Reciprocals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.evaluate.compared_model import Types
    from pbg_tasks.evaluate.one_side import OfTypes, OneSide
    from pbg_tasks.evaluate.paired_comparison import PairedRanks
    from pbg_tasks.evaluate.questions import Side
    from pbg_tasks.evaluate.tables import EntityTable


class RankedRounds:
    """Ranks of tonight's model, filled in round by round.

    Args:
        tables: embeddings by type.
        groups: types of the two ends, rows of the held-out edges that have them.
        sides: questions of the held-out edges.
        edges: number of held-out edges.
    """

    def __init__(
        self,
        tables: Mapping[str, EntityTable],
        groups: Sequence[tuple[Types, np.ndarray]],
        sides: Mapping[Side, OneSide],
        edges: int,
    ) -> None:
        self._sides = sides
        self._of_types = [(tables[lhs], tables[rhs], rows) for (lhs, rhs), rows in groups]
        self.found = {name: Ranks.empty(edges) for name in sides}
        self.popular = [ranks for side in sides.values() if (ranks := side.popular(self._of_types)) is not None]
        self._done = np.zeros(edges, bool)

    def _only(self, rows: np.ndarray) -> list[OfTypes]:
        return [(lhs, rhs, mine) for lhs, rhs, own in self._of_types if len(mine := own[np.isin(own, rows)])]

    def scores(self, rows: np.ndarray) -> int:
        """Return the number of scores that ranking some held-out edges takes."""
        return sum(len(own) * (lhs.candidates + rhs.candidates) for lhs, rhs, own in self._only(rows))

    def rank(self, model: Model, rows: np.ndarray) -> None:
        """Rank some more held-out edges.

        Args:
            model: that scores.
            rows: int64, of the edges.
        """
        for name, side in self._sides.items():
            self.found[name].take(rows, side.rank(model, self._only(rows)).select(rows))
        self._done[rows] = True

    def is_counted(self, extra: np.ndarray) -> np.ndarray:
        """Return which ranked edges count over all relations: bool (N,)."""
        counted = self._done.copy()
        counted[extra] = False
        return counted

    def counted(self, extra: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the ranked rows, and those that count over all relations.

        Both are ascending.
        """
        return np.flatnonzero(self._done), np.flatnonzero(self.is_counted(extra))

    def reciprocals(
        self, extra: np.ndarray, paired: PairedRanks | None, best: PairedRanks | None = None
    ) -> Reciprocals:
        """Return the reciprocal ranks of the edges that count over all relations."""
        _, rows = self.counted(extra)
        candidate, current = (None, None) if paired is None else paired.reciprocals(rows)
        ranked = mean_reciprocal([ranks.select(rows) for ranks in self.found.values()])
        popular = np.stack([1 / ranks[rows] for ranks in self.popular]).mean(axis=0) if self.popular else None
        beside_best = None if best is None else best.reciprocals(rows)
        return Reciprocals(ranked, popular, candidate, current, beside_best)
