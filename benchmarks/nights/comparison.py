"""Walks compared on the same held-out edges."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.nights.night import RELEASED, Night
from benchmarks.nights.ranking import held_out_names, rank_named
from pbg_tasks.evaluate.paired_comparison import mean_interval
from pbg_tasks.tasks.context import RunContext

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.nights.days import Edge

    Reciprocals = Sequence[Mapping[Edge, float]]

SEED = 0
"""Of the resampling."""
DEGREES = (1, 2, 6)
"""Largest degrees of groups of entities; one more group has all others."""


@dataclass(frozen=True, slots=True)
class Walked:
    """A walk that is done.

    Attributes:
        name: of its setting.
        spec: file of its spec.
        store: URL of its store.
        nights: in order.
    """

    name: str
    spec: Path
    store: str
    nights: list[Night] = field(default_factory=list)


def compare(walks: Mapping[str, Sequence[Walked]]) -> dict[str, Any]:
    """Rank the same held-out edges with every walk.

    The days are those, but the first, of which the independent nights have a release. A chain that lacks one of them,
    because its own gates refused it, is no choice for these data and is left out.

    Args:
        walks: one of ``independent`` nights, and of ``chain`` any number.

    Returns:
        ``days``; ``edges``: number of ``valid`` and ``test`` edges on the last of them, and of ``all`` test edges that
        any day asked. By walk a list of its settings: ``name``; mean MRR on ``valid`` and ``test`` edges, ``last`` of
        the test edges of the last day; ``against_independent``: mean difference ``mrr`` of the test MRR, with the ends
        ``low`` and ``high`` of its 95 % interval; ``overlap`` with the night before, and ``by_degree`` the same; means
        of ``cpu_seconds``, ``train_cpu_seconds`` and ``edges_trained``. ``refused``: number of the days that each chain
        lacks which was left out.
    """
    released = {
        each.name: {night.day: night for night in each.nights if night.outcome == RELEASED}
        for listed in walks.values()
        for each in listed
    }
    (independent,) = walks["independent"]
    days = list(released[independent.name])[1:]
    missing = {each.name: sum(day not in released[each.name] for day in days) for each in walks["chain"]}
    every = [independent, *(each for each in walks["chain"] if not missing[each.name])]
    by_day = [released[each.name] for each in every]
    found: list[list[list[dict[Edge, float]]]] = [[] for _ in every]
    edges = [0, 0]
    for day in days:
        asked = [
            set.intersection(*(held_out_names(nights[day].run, split) for nights in by_day))
            for split in ("valid", "test")
        ]
        edges = [len(each) for each in asked]
        for ranks, nights in zip(found, by_day, strict=True):
            ranks.append(rank_named(nights[day].run, *asked))
    tests = [[test for _, test in ranks] for ranks in found]
    rows = [
        _row(each, [nights[day] for day in days], ranks) | {"against_independent": difference(test, tests[0])}
        for each, nights, ranks, test in zip(every, by_day, found, tests, strict=True)
    ]
    return {
        "days": days,
        "edges": {"valid": edges[0], "test": edges[1], "all": len(set().union(*tests[0]))},
        "independent": [rows[0] | {"against_independent": None}],
        "chain": rows[1:],
        "refused": {name: count for name, count in missing.items() if count},
    }


def difference(ours: Reciprocals, theirs: Reciprocals) -> dict[str, float]:
    """Return the mean difference of the MRR, with its 95 % interval.

    Edges are resampled, each with all its days: the days of one edge give nearly the same.

    Args:
        ours: by day, the reciprocal rank of each edge.
        theirs: same days, same edges.

    Returns:
        See ``mean_interval``.
    """
    shares: defaultdict[Edge, float] = defaultdict(float)
    for now, other in zip(ours, theirs, strict=True):
        for edge, value in now.items():
            shares[edge] += (value - other[edge]) / len(now) / len(ours)
    return mean_interval(np.array([shares[edge] for edge in sorted(shares)]) * len(shares), SEED)


def _row(walked: Walked, nights: Sequence[Night], ranks: Sequence[Reciprocals]) -> dict[str, Any]:
    figures = [night.figures for night in nights]
    overlaps = [each["drift"]["overlap"] for each in figures if "overlap" in each.get("drift", {})]
    valid, test = (round(fmean(map(_mrr, each)), 4) for each in zip(*ranks, strict=True))
    return {
        "name": walked.name,
        "valid": valid,
        "test": test,
        "last": round(_mrr(ranks[-1][1]), 4),
        "overlap": round(fmean(overlaps), 4) if overlaps else None,
        "by_degree": overlap_by_degree([RunContext.open(night.run).result("drift") or {} for night in nights]),
        **{
            key: round(fmean(each[key] for each in figures), 2)
            for key in ("cpu_seconds", "train_cpu_seconds", "edges_trained")
        },
    }


def _mrr(reciprocals: Mapping[Edge, float]) -> float:
    return fmean(reciprocals.values())


def overlap_by_degree(drifts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the mean overlap of entities by degree, over nights.

    Args:
        drifts: results of the task ``drift``, whose deciles are put together.

    Returns:
        ``up_to``, one of ``DEGREES`` or None; the ``share`` of the entities, and their ``overlap``.
    """
    groups = defaultdict[int, list[tuple[int, float]]](list)
    for drift in drifts:
        for decile in (each for listed in drift.get("degree_deciles", {}).values() for each in listed):
            if decile["overlap"] is not None:
                group = sum(decile["max_degree"] > most for most in DEGREES)
                groups[group].append((decile["entities"], decile["overlap"]))
    total = sum(count for group in groups.values() for count, _ in group)
    return [
        {
            "up_to": (*DEGREES, None)[group],
            "share": round(sum(count for count, _ in rows) / total, 4),
            "overlap": round(sum(count * overlap for count, overlap in rows) / sum(count for count, _ in rows), 4),
        }
        for group, rows in sorted(groups.items())
    ]
