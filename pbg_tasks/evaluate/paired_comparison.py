"""Two models asked the same: the held-out edges whose ends and relation both know, among the entities both know.

The rows of the other model lie where tonight's ids say, so both have one numbering, one list of questions and one list
of known answers. Each edge gives a pair of ranks, and the interval of their difference is that of resampled pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pbg_tasks.evaluate.report import by_relation, rank_figures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.evaluate.compared_model import ComparedModel, Types
    from pbg_tasks.evaluate.ids import Numbering, Triples
    from pbg_tasks.evaluate.one_side import OneSide
    from pbg_tasks.evaluate.questions import Side
    from pbg_tasks.evaluate.ranking import Model, Ranks
    from pbg_tasks.evaluate.report import Figures
    from pbg_tasks.evaluate.tables import EntityTable

MAX_EDGES = 100_000
"""Edges that are asked: with more of them, a sample; the interval is then some thousandth wide."""
RESAMPLES = 1000
_INTERVAL = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """How two models did.

    Attributes:
        edges: that were asked, each on both sides.
        candidates: how many entities of each type.
        candidate: figures of tonight's model, ``raw`` and ``filtered``.
        current: of the other one.
        difference: of the filtered MRR, tonight's minus the other: ``mrr``, and ``low`` and ``high``, between which it
            lies with 95 % (paired bootstrap over edges); empty without an edge.
        relations: by name, ``edges`` and the filtered MRR of ``candidate`` and ``current``.
    """

    edges: int
    candidates: dict[str, int]
    candidate: dict[str, Figures]
    current: dict[str, Figures]
    difference: dict[str, float]
    relations: dict[str, dict[str, Any]]

    @classmethod
    def of(
        cls,
        ours: Sequence[Ranks],
        theirs: Sequence[Ranks],
        rel: np.ndarray,
        labels: Sequence[str],
        candidates: dict[str, int],
        seed: int,
    ) -> Self:
        """Summarise ranks of the same edges.

        Args:
            ours: tonight's, of each side.
            theirs: the other model's.
            rel: int64 (N,), relation of each edge.
            labels: names of the relations.
            candidates: see the attributes.
            seed: of the resampling.
        """
        both = [np.stack([1 / side.filtered for side in ranks]).mean(axis=0) for ranks in (ours, theirs)]
        return cls(
            edges=len(rel),
            candidates=candidates,
            candidate=rank_figures(ours),
            current=rank_figures(theirs),
            difference=paired_difference(both[0] - both[1], seed),
            relations={
                labels[number]: {"edges": len(rows)}
                | {
                    name: round(float(values[rows].mean()), 8)
                    for name, values in zip(("candidate", "current"), both, strict=True)
                }
                for number, rows in by_relation(rel)
            },
        )


def paired_difference(differences: np.ndarray, seed: int) -> dict[str, float]:
    """Return the mean of paired differences and the interval that 95 of 100 resampled means lie in.

    Args:
        differences: float64 (N,).
        seed: of the resampling.
    """
    if not len(differences):
        return {}
    rng = np.random.default_rng(seed)
    means = [differences[rng.integers(len(differences), size=len(differences))].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, _INTERVAL)
    return {name: round(float(value), 8) for name, value in (("mrr", differences.mean()), ("low", low), ("high", high))}


def compete(
    model: Model,
    tables: Mapping[str, EntityTable],
    compared: ComparedModel,
    numbering: Numbering,
    groups: Sequence[tuple[Types, np.ndarray]],
    sides: Mapping[Side, OneSide],
    ranked: Mapping[Side, Ranks],
    asked: Triples,
    labels: Sequence[str],
    seed: int,
) -> PairedComparison:
    """Ask two models the same.

    Args:
        model: tonight's.
        tables: its embeddings by type, with the candidates of tonight's evaluation.
        compared: the other one.
        numbering: of tonight's entities.
        groups: types of the two ends, rows of the held-out edges that have them.
        sides: what the held-out edges ask, with the known answers.
        ranked: how tonight's model ranked them among its candidates.
        asked: all held-out edges.
        labels: names of tonight's relations.
        seed: of samples.
    """
    chosen = _drawn([(types, rows[compared.fair(types, asked.select(rows))]) for types, rows in groups], seed)
    candidates = {
        entity: table.candidate_numbers()[compared.known[entity][table.candidate_numbers()]]
        for entity, table in tables.items()
    }
    rows = np.concatenate([np.empty(0, np.int64), *(rows for _, rows in chosen)])

    def ranks_of(one: Model, its: Mapping[str, EntityTable]) -> list[Ranks]:
        of_types = [(its[lhs], its[rhs], rows) for (lhs, rhs), rows in chosen if len(rows)]
        return [side.rank(one, of_types).select(rows) for side in sides.values()]

    ours = [ranks.select(rows) for ranks in ranked.values()]
    outside = {
        entity: np.setdiff1d(table.candidate_numbers(), candidates[entity], assume_unique=True)
        for entity, table in tables.items()
    }
    if sum(map(len, outside.values())) > sum(map(len, candidates.values())):
        ours = ranks_of(model, {entity: table.among(candidates[entity]) for entity, table in tables.items()})
    elif any(map(len, outside.values())):  # few are new to the rival: cheaper than all others once more
        among_outside = ranks_of(model, {entity: table.among(outside[entity]) for entity, table in tables.items()})
        ours = [ranks.without(these) for ranks, these in zip(ours, among_outside, strict=True)]
    theirs = {
        entity: compared.table(entity, numbering.bases[entity], numbers)
        for entity, numbers in candidates.items()
        if entity in compared.config.entities
    }
    return PairedComparison.of(
        ours,
        ranks_of(compared.model(model), theirs),
        asked.rel[rows],
        labels,
        {entity: len(numbers) for entity, numbers in candidates.items()},
        seed,
    )


def _drawn(groups: list[tuple[Types, np.ndarray]], seed: int) -> list[tuple[Types, np.ndarray]]:
    """Return at most ``MAX_EDGES`` rows of all groups together."""
    total = sum(len(rows) for _, rows in groups)
    if total <= MAX_EDGES:
        return groups
    kept = np.zeros(total, bool)
    kept[np.random.default_rng(seed).choice(total, size=MAX_EDGES, replace=False, shuffle=False)] = True
    cuts = np.cumsum([len(rows) for _, rows in groups])[:-1]
    return [(types, rows[own]) for (types, rows), own in zip(groups, np.split(kept, cuts), strict=True)]
