"""Ranking of a sample of held-out edges, round by round.

Two models that are compared need fewer edges than the figures of one: what differs between edges is mostly the same for
both. So another model is asked parts of a round, each as large as all before it, until the gate can decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.evaluate import sampling
from pbg_tasks.evaluate.counts import TONIGHT
from pbg_tasks.evaluate.kept_counts import KeptCounts
from pbg_tasks.evaluate.paired_comparison import mean_reciprocal
from pbg_tasks.evaluate.ranking import Model, Ranks
from pbg_tasks.evaluate.sampling import Reciprocals, pair_decides

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.config import Gates
    from pbg_tasks.evaluate.compared_model import Types
    from pbg_tasks.evaluate.counts import Counting
    from pbg_tasks.evaluate.ids import Triples
    from pbg_tasks.evaluate.one_side import OfTypes, OneSide
    from pbg_tasks.evaluate.paired_comparison import PairedRanks
    from pbg_tasks.evaluate.sampling import Ratios
    from pbg_tasks.evaluate.tables import EntityTable
    from pbg_tasks.model.parameters import Side


class RankedRounds:
    """Ranks of tonight's model, filled in round by round.

    Args:
        tables: embeddings by type.
        groups: types of the two ends, rows of the held-out edges that have them.
        sides: questions of the held-out edges.
        edges: number of held-out edges.
        counting: of candidates.
    """

    def __init__(
        self,
        tables: Mapping[str, EntityTable],
        groups: Sequence[tuple[Types, np.ndarray]],
        sides: Mapping[Side, OneSide],
        edges: int,
        counting: Counting,
    ) -> None:
        self._sides, self._counting = sides, counting
        self._of_types = [(tables[lhs], tables[rhs], rows) for (lhs, rhs), rows in groups]
        self.found = {name: Ranks.empty(edges) for name in sides}
        self.popular = [ranks for side in sides.values() if (ranks := side.popular(self._of_types)) is not None]
        self._done, self._settled = np.zeros(edges, bool), np.ones(edges, bool)
        self._tables = tables

    def _only(self, rows: np.ndarray) -> list[OfTypes]:
        return [(lhs, rhs, mine) for lhs, rhs, own in self._of_types if len(mine := own[np.isin(own, rows)])]

    def scores(self, rows: np.ndarray) -> int:
        """Return the number of scores that ranking some held-out edges takes."""
        return sum(len(own) * (lhs.shared + rhs.shared) for lhs, rhs, own in self._only(rows))

    def rank(self, model: Model, rows: np.ndarray) -> None:
        """Rank some more held-out edges.

        Args:
            model: that scores.
            rows: int64, of the edges.
        """
        for name, found in self._counting.rank(TONIGHT, model, self._sides, self._only(rows)).items():
            self.found[name].take(rows, found.select(rows))
        self._done[rows] = True
        for unsettled in model.unsettled:
            self._settled[unsettled] = False

    def kept(self, asked: Triples) -> KeptCounts:
        """Return the counts for later nights.

        Edges with a tile of candidates that were not settled are left out: another tile might have settled them.

        Args:
            asked: all held-out edges.
        """
        rows, own = np.flatnonzero(self._done & self._settled), 1  # the true entity
        no_worse = np.stack([self.found[name].raw[rows] - own for name in self._sides])
        candidates = {entity: table.candidate_flags() for entity, table in self._tables.items()}
        return KeptCounts(asked.select(rows), no_worse, candidates)

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
        self,
        extra: np.ndarray,
        paired: PairedRanks | None,
        best: PairedRanks | None = None,
        replaced: PairedRanks | None = None,
    ) -> Reciprocals:
        """Return the reciprocal ranks of the edges that count over all relations."""
        _, rows = self.counted(extra)
        candidate, current = (None, None) if paired is None else paired.reciprocals(rows)
        ranked = mean_reciprocal([ranks.select(rows) for ranks in self.found.values()])
        popular = np.stack([1 / ranks[rows] for ranks in self.popular]).mean(axis=0) if self.popular else None
        beside = [None if other is None else other.reciprocals(rows) for other in (best, replaced)]
        return Reciprocals(ranked, popular, candidate, current, *beside)


class PairedRounds:
    """Comparison with another model on the edges that decide.

    Args:
        paired: both models.
        ratios: limits of the MRR of tonight's model, as shares of the other's.
        gates: of the graph; None: all edges are asked.
        extra: int64, rows that count in the figures of their relation only; they are asked at once.
        decides: whether asking ends once the gate can decide; a part of an evaluation goes on, as it has no ranks.
    """

    def __init__(
        self, paired: PairedRanks, ratios: Ratios, gates: Gates | None, extra: np.ndarray, *, decides: bool = True
    ) -> None:
        self.paired, self._ratios = paired, ratios
        self._gates, self._extra = gates, extra
        self._decides = decides
        self._waiting = np.empty(0, np.int64)
        self._asked = np.empty(0, np.int64)

    def rank(self, model: Model, rows: np.ndarray, rounds: RankedRounds, *, whole: bool) -> None:
        """Ask the other model, too.

        Args:
            model: tonight's.
            rows: int64, of the held-out edges that tonight's model was just asked.
            rounds: its ranks.
            whole: whether all of them are asked, because none of the split is left out.
        """
        extra = np.isin(rows, self._extra)
        if extra.any():
            self.paired.rank(model, rows[extra], rounds.found)
        self._waiting = np.concatenate((self._waiting, rows[~extra]))
        while len(self._waiting) and (whole or not self._enough()):
            count = len(self._waiting) if whole or self._gates is None else max(sampling.FIRST_PAIRS, len(self._asked))
            part, self._waiting = self._waiting[:count], self._waiting[count:]
            self.paired.rank(model, part, rounds.found)
            self._asked = np.concatenate((self._asked, part))

    def _enough(self) -> bool:
        return (
            self._decides
            and self._gates is not None
            and pair_decides(*self.paired.reciprocals(self._asked), self._ratios, self._gates)
        )
