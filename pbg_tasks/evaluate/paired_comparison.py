"""Paired comparison of two models on the same questions.

They rank the held-out edges whose ends and relation both know, among the entities that both know. The rows of the other
model are at the places of tonight's ids, so both have one numbering, one list of questions and one list of known
answers. Each edge gives a pair of ranks, and the interval of their difference is that of resampled pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypedDict

import numpy as np

from pbg_tasks.evaluate.kept_counts import KeptRanker
from pbg_tasks.evaluate.ranking import Ranks
from pbg_tasks.evaluate.report import by_relation, rank_figures
from pbg_tasks.progress import counted, say

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pbg_tasks.evaluate.compared_model import ComparedModel, Types
    from pbg_tasks.evaluate.counts import Counting
    from pbg_tasks.evaluate.ids import Numbering, Triples
    from pbg_tasks.evaluate.one_side import OneSide
    from pbg_tasks.evaluate.ranking import Model
    from pbg_tasks.evaluate.report import Figures
    from pbg_tasks.evaluate.tables import EntityTable
    from pbg_tasks.model.parameters import Side

MAX_EDGES = 100_000
"""Largest number of ranked edges; of more, a sample is ranked. The interval is then some thousandths wide."""
RESAMPLES = 1000
_INTERVAL = (0.025, 0.975)
_MODELS = ("candidate", "current")


class PairedRelation(TypedDict):
    """Edges of a relation, and both filtered MRRs on them."""

    edges: int
    candidate: float
    current: float


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Figures of two models on the same edges.

    Attributes:
        edges: number of ranked edges, each on both sides.
        candidates: number of entities of each type.
        candidate: figures of tonight's model, ``raw`` and ``filtered``.
        current: of the other one.
        difference: of the filtered MRR, tonight's minus the other: ``mrr``, and ``low`` and ``high``, the ends of its
            95 % interval (paired bootstrap over edges); empty without an edge.
        relations: by name, ``edges`` and the filtered MRR of ``candidate`` and ``current``.
    """

    edges: int
    candidates: dict[str, int]
    candidate: dict[str, Figures]
    current: dict[str, Figures]
    difference: dict[str, float]
    relations: dict[str, PairedRelation]

    @classmethod
    def of(
        cls,
        ours: Sequence[Ranks],
        theirs: Sequence[Ranks],
        rel: np.ndarray,
        labels: Sequence[str],
        candidates: dict[str, int],
        seed: int,
        *,
        counted: np.ndarray | None = None,
    ) -> Self:
        """Summarise ranks of the same edges.

        Args:
            ours: tonight's, of each side.
            theirs: the other model's.
            rel: int64 (N,), relation of each edge.
            labels: names of the relations.
            candidates: see the attributes.
            seed: of the resampling.
            counted: bool (N,), edges that count over all relations; None: all. The others count only in the figures of
                their relations.
        """
        both = [mean_reciprocal(ranks) for ranks in (ours, theirs)]
        over_all = np.arange(len(rel)) if counted is None else np.flatnonzero(counted)
        return cls(
            edges=len(over_all),
            candidates=candidates,
            candidate=rank_figures([ranks.select(over_all) for ranks in ours]),
            current=rank_figures([ranks.select(over_all) for ranks in theirs]),
            difference=mean_interval((both[0] - both[1])[over_all], seed),
            relations={
                labels[number]: {
                    "edges": len(rows),
                    "candidate": round(float(both[0][rows].mean()), 8),
                    "current": round(float(both[1][rows].mean()), 8),
                }
                for number, rows in by_relation(rel)
            },
        )


def mean_interval(values: np.ndarray, seed: int) -> dict[str, float]:
    """Return the mean of values and its 95 % interval, by resampling.

    Args:
        values: float64 (N,), such as paired differences.
        seed: of the resampling.

    Returns:
        ``mrr``, the mean, and ``low`` and ``high``; empty without a value.
    """
    if not len(values):
        return {}
    rng = np.random.default_rng(seed)
    means = [values[rng.integers(len(values), size=len(values))].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, _INTERVAL)
    return {name: round(float(value), 8) for name, value in (("mrr", values.mean()), ("low", low), ("high", high))}


class PairedRanks:
    """Ranks of two models on the same edges, by rounds.

    Args:
        tables: embeddings of tonight's model by type, with the candidates of tonight's evaluation.
        compared: the other one.
        numbering: of tonight's entities.
        groups: types of the two ends, rows of the held-out edges that have them.
        sides: questions of the held-out edges, with the known answers.
        asked: all held-out edges.
        seed: of samples.
        counting: of candidates.
        name: of the other model among the counts.
    """

    def __init__(
        self,
        tables: Mapping[str, EntityTable],
        compared: ComparedModel,
        numbering: Numbering,
        groups: Sequence[tuple[Types, np.ndarray]],
        sides: Mapping[Side, OneSide],
        asked: Triples,
        seed: int,
        counting: Counting,
        name: str,
    ) -> None:
        self._counting, self._name = counting, name
        self._tables, self._compared = tables, compared
        self._sides, self._asked = sides, asked
        self._seed = seed
        self._chosen = _drawn([(types, rows[compared.fair(types, asked.select(rows))]) for types, rows in groups], seed)
        self._candidates: dict[str, np.ndarray] = {}
        self._outside: dict[str, np.ndarray] = {}
        for entity, table in tables.items():
            numbers = table.candidate_numbers()
            known = compared.known[entity][numbers]
            self._candidates[entity], self._outside[entity] = numbers[known], numbers[~known]
        self._theirs = {
            entity: compared.table(entity, numbering.bases[entity], numbers, counting.share.get(entity))
            for entity, numbers in self._candidates.items()
            if entity in compared.config.entities
        }
        self._ranks = {(name, predict): Ranks.empty(len(asked)) for name in _MODELS for predict in sides}
        self._done = np.zeros(len(asked), bool)
        kept = compared.kept
        self._kept = None if kept is None else KeptRanker(kept, compared, numbering.bases, self._chosen, asked)

    def rank(self, model: Model, rows: np.ndarray, ranked: Mapping[Side, Ranks]) -> None:
        """Rank some more edges by both models.

        An edge with a rank below 1 is left out: it has no reciprocal, and parts count without each other's vectors, so
        that its candidates could not be counted anew.

        Args:
            model: tonight's.
            rows: int64, of the held-out edges.
            ranked: ranks of these edges by tonight's model among its candidates, by side; of all held-out edges.
        """
        chosen = [(types, own[np.isin(own, rows)]) for types, own in self._chosen]
        rows = np.concatenate([np.empty(0, np.int64), *(own for _, own in chosen)])

        def ranks_of(one: Model, its: Mapping[str, EntityTable], name: str = "candidate") -> list[Ranks]:
            of_types = [(its[lhs], its[rhs], own) for (lhs, rhs), own in chosen if len(own)]
            found = self._counting.rank(f"{self._name}.{name}", one, self._sides, of_types)
            return [ranks.select(rows) for ranks in found.values()]

        found = {
            "candidate": self._ours(model, rows, ranked, ranks_of),
            "current": self._theirs_of(self._compared.model(model), chosen, rows, ranks_of),
        }
        for name, sides in found.items():
            for predict, part in zip(self._sides, sides, strict=True):
                self._ranks[name, predict].take(rows, part)
        possible = np.logical_and.reduce([part.possible() for part in found["candidate"]])
        self._done[rows[possible]] = True
        if left_out := int(np.count_nonzero(~possible)):
            say(f"eval: {counted(left_out, 'edge')} not compared: rounding judged a candidate in two ways")

    def _theirs_of(
        self,
        model: Model,
        chosen: Sequence[tuple[Types, np.ndarray]],
        rows: np.ndarray,
        ranks_of: Callable[[Model, Mapping[str, EntityTable], str], list[Ranks]],
    ) -> list[Ranks]:
        """Return the ranks by the other model."""
        if self._kept is None:
            return ranks_of(model, self._theirs, "current")
        there = [(types, own) for types, own in chosen if len(own)]
        found = self._kept.rank(self._sides, model, self._theirs, there)
        return [ranks.select(rows) for ranks in found.values()]

    def _ours(
        self,
        model: Model,
        rows: np.ndarray,
        ranked: Mapping[Side, Ranks],
        ranks_of: Callable[[Model, Mapping[str, EntityTable]], list[Ranks]],
    ) -> list[Ranks]:
        """Return the ranks by tonight's model among the candidates of both models."""
        tables, candidates = self._tables, self._candidates
        outside = self._outside
        if sum(map(len, outside.values())) > sum(map(len, candidates.values())):
            return ranks_of(model, {entity: table.among(candidates[entity]) for entity, table in tables.items()})
        ours = [ranks.select(rows) for ranks in ranked.values()]
        if not any(map(len, outside.values())):
            return ours
        # Few candidates are unknown to the other model: ranking among these is cheaper than among all others once more.
        among_outside = ranks_of(model, {entity: table.among(outside[entity]) for entity, table in tables.items()})
        return [ranks.without(these) for ranks, these in zip(ours, among_outside, strict=True)]

    def reciprocals(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the reciprocal ranks of both models.

        Args:
            rows: int64, of held-out edges; those that were not ranked are left out.

        Returns:
            float64 (M,) each.
        """
        rows = rows[self._done[rows]]
        return mean_reciprocal(self._select("candidate", rows)), mean_reciprocal(self._select("current", rows))

    def _select(self, name: str, rows: np.ndarray) -> list[Ranks]:
        """Return a model's ranks of some edges, of each side."""
        return [self._ranks[name, predict].select(rows) for predict in self._sides]

    def comparison_(self, counted: np.ndarray, labels: Sequence[str]) -> PairedComparison:
        """Summarise the ranked edges.

        Args:
            counted: bool (N,), whether each held-out edge counts over all relations; the others count only in the
                figures of their relations.
            labels: names of the relations.
        """
        rows = np.concatenate([np.empty(0, np.int64), *(own[self._done[own]] for _, own in self._chosen)])
        return PairedComparison.of(
            self._select("candidate", rows),
            self._select("current", rows),
            self._asked.rel[rows],
            labels,
            {entity: len(numbers) for entity, numbers in self._candidates.items()},
            self._seed,
            counted=counted[rows],
        )


def mean_reciprocal(sides: Sequence[Ranks]) -> np.ndarray:
    """Return the mean reciprocal filtered rank of both sides: float64 (N,)."""
    mean: np.ndarray = np.stack([1 / side.filtered for side in sides]).mean(axis=0)
    return mean


def _drawn(groups: list[tuple[Types, np.ndarray]], seed: int) -> list[tuple[Types, np.ndarray]]:
    """Return at most ``MAX_EDGES`` rows of all groups together."""
    total = sum(len(rows) for _, rows in groups)
    if total <= MAX_EDGES:
        return groups
    kept = np.zeros(total, bool)
    kept[np.random.default_rng(seed).choice(total, size=MAX_EDGES, replace=False, shuffle=False)] = True
    cuts = np.cumsum([len(rows) for _, rows in groups])[:-1]
    return [(types, rows[own]) for (types, rows), own in zip(groups, np.split(kept, cuts), strict=True)]
