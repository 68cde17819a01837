"""Share of edges that stay overnight, against the usual share.

Where days have few edges in common, as those of events, that is no fault. Where almost all edges stay every night, a
snapshot that has half of them is damaged. An edge that is gone and has another in its place counts twice: cells in
wrong rows, other ids and exchanged relations replace edges, which neither growth nor loss does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from pbg_tasks.config.limits import only_warning, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pbg_tasks.config.gates import DataGates
    from pbg_tasks.config.limits import AtLeast, Check
    from pbg_tasks.prepare.difference import EdgeChanges

NIGHTS = 7
"""Number of the last nights that decide what is usual. With fewer, no night is judged.

They are a week, so that a relation that is renewed each Sunday has its like among them, and so that a graph of the last
days of events, which loses no edge before it has all of its days, is known by its full days.
"""
_USUALLY = 0.7
"""Median from which on nights are judged. Below it, one night differs too much from the next."""
_LIKE_IT = 0.9
"""Part of the least share of those nights from which on a night is like that one."""
_FEWEST_EDGES = 100
_LEAST_PART = 0.01
"""Part of all edges from which on a relation is judged alone."""
_SHOWN_RELATIONS = 3

Counts = tuple[int, int, int]
"""Numbers of distinct edges: before, added and removed."""


@dataclass(frozen=True, slots=True)
class KeptEdges:
    """Shares of the edges before that a snapshot still has.

    Attributes:
        total: of all edges.
        relations: of each relation that had enough of them.
    """

    total: float
    relations: Mapping[str, float]

    @classmethod
    def of(cls, total: Counts, relations: Mapping[str, Counts]) -> KeptEdges | None:
        """Return the shares; None without an edge before.

        An only relation is not counted alone.
        """
        if not total[0]:
            return None
        fewest = max(_FEWEST_EDGES, _LEAST_PART * total[0])
        large = {name: counts for name, counts in relations.items() if counts[0] >= fewest and len(relations) > 1}
        return cls(_share(*total), {name: _share(*counts) for name, counts in large.items()})

    @classmethod
    def of_changes(cls, edges: EdgeChanges | None) -> KeptEdges | None:
        """Return the shares of a snapshot; None without known changes.

        Relations without any edge left are left to ``max_gone_relations``.
        """
        if edges is None or not edges.exact:
            return None
        there = {name: each for name, each in edges.relations.items() if each.now}
        relations = {name: (each.before, each.added, each.removed) for name, each in there.items()}
        return cls.of((edges.before, edges.added, edges.removed), relations)

    def is_low(self, gates: DataGates) -> bool:
        """Return whether a share is too low where usually all stay.

        If none is, all are within the limits whatever the usual share.
        """
        shares = [(gates.min_kept_edges, self.total)]
        shares += [(gates.min_kept_by_relation, share) for share in self.relations.values()]
        return any(share < max(limit.warn or 0, limit.block or 0) for limit, share in shares)


def kept_checks(
    gates: DataGates, since: str | None, tonight: KeptEdges, before: Sequence[KeptEdges], apart: int
) -> Iterator[Check]:
    """Check the shares of a snapshot.

    Args:
        gates: the limits.
        since: key of the snapshot that it is compared with.
        tonight: shares of the snapshot.
        before: those of the last nights.
        apart: number of nights in which edges may have gone.
    """
    limit, all_edges = gates.min_kept_edges, f"of the edges of {since!r}"
    check = _check("min_kept_edges", limit, all_edges, (tonight.total, [each.total for each in before]), apart)
    if check is not None:
        yield check
    found: dict[str, Check] = {}
    for relation, share in tonight.relations.items():
        known = [each.relations[relation] for each in before if relation in each.relations]
        edges = f"{all_edges} of relation {relation}"
        check = _check("min_kept_by_relation", gates.min_kept_by_relation, edges, (share, known), apart)
        if check is not None:
            found[relation] = check
    if found:
        yield _worst(found)


def _share(before: int, added: int, removed: int) -> float:
    return (before - removed) / (before + min(added, removed))


def _check(name: str, limit: AtLeast, edges: str, shares: tuple[float, Sequence[float]], apart: int) -> Check | None:
    """Check one share; None without a limit or a usual share."""
    share, before = shares
    if not limit.asked or len(before) < NIGHTS or median(before) < _USUALLY:
        return None
    usual, least = median(before) ** apart, min(before)
    over = f", over {apart} nights" if apart > 1 else ""
    found = (
        f"{percent(share)} {edges} are still there (a replaced one counts twice), {share / usual:.2f} times the usual"
    )
    check = limit.judge(name, share / usual, f"{found} {percent(usual)} (median of the last {NIGHTS} nights{over})")
    if share < _LIKE_IT * least:
        return check
    return only_warning(check, f"because one of those nights kept {percent(least)}")


def _worst(checks: Mapping[str, Check]) -> Check:
    """Return the worst relation's check, which names others like it."""
    name = min(checks, key=lambda each: (checks[each].passed, not checks[each].warned, checks[each].value or 0.0))
    worst = checks[name]
    state = worst.passed, worst.warned
    like_it = [each for each, check in checks.items() if each != name and (check.passed, check.warned) == state]
    if state == (True, False) or not like_it:
        return worst
    shown = ", ".join(like_it[:_SHOWN_RELATIONS]) + (", ..." if len(like_it) > _SHOWN_RELATIONS else "")
    return replace(worst, sentence=f"{worst.sentence}; likewise of {shown}")
