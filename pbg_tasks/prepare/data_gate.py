"""Data gate: check of a snapshot before resources are spent on training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from pbg_tasks.config.limits import Check, Verdict, only_warning, percent
from pbg_tasks.prepare.kept_edges import KeptEdges, kept_checks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pbg_tasks.config.gates import DataGates
    from pbg_tasks.config.limits import AtMost
    from pbg_tasks.prepare.comparison import Volume
    from pbg_tasks.prepare.difference import EdgeChanges
    from pbg_tasks.prepare.validate import SnapshotReport

_SHARE = "{share}"
_SHOWN_RELATIONS = 3
_FEWEST_OF_TYPE = 30
LOST = ("max_removed_edges", "max_gone_relations", "max_gone_entities")
"""Checks of a share of what was there before; from the limit of one night follows that of several."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Differences of a snapshot from those before it.

    Attributes:
        since: key of the last release's snapshot; None for the first night.
        edges: changes of the edges; None where those before are unknown.
        degrees: distance of the distributions, by entity type.
        columns: differences of the files' columns, a sentence each.
        volumes: rows relative to earlier snapshots.
        awaited: key of the snapshot before, where its night has not finished and no run waits for it: then ``since`` is
            an older one, or None, because of the order in which nights happened to run.
    """

    since: str | None
    edges: EdgeChanges | None
    degrees: Mapping[str, float]
    columns: Sequence[str]
    volumes: Sequence[Volume]
    awaited: str | None = None


class Measured(NamedTuple):
    """Last night between two that are compared whose losses are known.

    Attributes:
        lost: shares that were gone then, by check.
        after: number of nights since then, the one that is judged among them.
    """

    lost: Mapping[str, float]
    after: int


def judge_snapshot(
    gates: DataGates,
    report: SnapshotReport,
    difference: Difference,
    *,
    apart: int = 1,
    measured: Measured | None = None,
    kept: Sequence[KeptEdges] = (),
) -> Verdict:
    """Judge the edges of a snapshot.

    Args:
        gates: the limits.
        report: figures of the snapshot.
        difference: from those before.
        apart: number of nights, this one among them, in which what is gone may have gone.
        measured: one of the others, beyond whose losses each night since may lose its own share; None: there is none.
        kept: edges that the last nights kept.
    """
    there = _lost_of_relations_there(difference.edges)
    checks = _compared(gates, difference)
    compared = [_over_nights(check, difference.awaited, apart, measured, there) for check in checks]
    if (tonight := KeptEdges.of_changes(difference.edges)) is not None:
        compared += kept_checks(gates, difference.since, tonight, kept, apart)
    return Verdict((*_own(gates, report), *_volumes(gates, difference.volumes), *compared))


def judge_entities(
    gates: DataGates,
    types: Mapping[str, Mapping[str, int]],
    *,
    since: str | None,
    awaited: str | None = None,
    apart: int = 1,
    measured: Measured | None = None,
) -> Verdict:
    """Judge the entities of a snapshot, all and by type.

    Entities that were absent before already count neither as kept nor as gone: where names come and go every day, they
    become most of all that are known, though no day differs much from the one before. A type of which only a few were
    there is not judged alone. A type with a limit of its own is always judged, by that one only, and does not count
    among all.

    Args:
        gates: the limits.
        types: numbers of entities that are ``kept`` and ``gone``, of those in the snapshot before, by type.
        since: key of that snapshot; None for a night that knows no entities.
        awaited: key of a snapshot between the two whose night has not finished; None where there is none.
        apart: number of nights, this one among them, in which what is gone may have gone.
        measured: as for ``judge_snapshot``.
    """
    name, own = "max_gone_entities", gates.gone_entities
    shared = [counts for entity, counts in types.items() if entity not in own]
    total = {"kept": sum(counts["kept"] for counts in shared), "gone": sum(counts["gone"] for counts in shared)}
    all_of_them = f"entities of other types than {', '.join(own)}" if own else "entities"
    judged: dict[str, tuple[AtMost, str, Mapping[str, int]]] = {name: (gates.max_gone_entities, all_of_them, total)}
    if len(types) > 1 or own:
        for entity, counts in types.items():
            limit = own.get(entity, gates.max_gone_entities)
            judged[f"{name} of {entity}"] = (limit, f"entities of type {entity}", counts)
    checks = []
    for check, (limit, of_what, counts) in judged.items():
        before = counts["kept"] + counts["gone"]
        alone = check != name and check.removeprefix(f"{name} of ") not in own
        if limit.asked and before >= (_FEWEST_OF_TYPE if alone else 1):
            share = counts["gone"] / before
            found = f"{percent(share)} of the {of_what} of {since!r} are in no edge any more"
            checks.append(_over_nights(limit.judge(check, share, found, _SHARE), awaited, apart, measured))
    return Verdict(tuple(checks))


def _over_nights(
    check: Check, awaited: str | None, apart: int, measured: Measured | None, there: float | None = None
) -> Check:
    """Let a check only warn of what several nights could lose.

    Entities and edges go by chance: of what is left after one night, the next loses the same share. Relations may be
    dated and then go in their order, so their shares add up; edges of relations without any are left to their check.

    While a night between is unfinished, the other checks only warn. What is gone blocks all the same beyond that: a
    snapshot of other ids would be published otherwise, because the night before it broke.

    Args:
        check: of one night's limit.
        awaited: the unfinished night; None where there is none.
        apart: number of nights.
        measured: one of them.
        there: share of removed edges, among those of relations that have edges; None where that is not known.
    """
    name = check.name.split()[0]
    if check.passed or (awaited is None and apart == 1):
        return check
    if name in LOST and check.value is not None and check.limit is not None:
        most = _most(check.name, check.limit, apart, 0.0)
        if measured is not None and check.name in measured.lost:
            most = min(most, _most(check.name, check.limit, measured.after, measured.lost[check.name]))
        lost = check.value
        if name == "max_removed_edges" and there is not None:
            lost = there
        if lost > most:
            over = f" in one night, {percent(most)} in the {apart} nights since then" if apart > 1 else ""
            return replace(check, sentence=f"{check.sentence}{over}")
        if awaited is None:
            of_all = "" if lost == check.value else f"; without relations that went it is {percent(lost)}"
            reason = f"because that is for one night: in the {apart} nights since then {percent(most)} may go{of_all}"
            return only_warning(check, reason)
    if awaited is None:
        return check
    return only_warning(check, f"for {awaited!r}, which comes between, has no release yet")


def _most(name: str, limit: float, nights: int, before: float) -> float:
    """Return the largest share that may be gone after some nights.

    ``before`` was gone before them.
    """
    if name == "max_gone_relations":
        return min(1.0, before + limit * nights)
    return 1 - (1 - before) * (1 - limit) ** nights


def _lost_of_relations_there(edges: EdgeChanges | None) -> float | None:
    """Return the share of removed edges among relations that remained.

    None where none is known to have: relations that are all others are not dated but read from elsewhere.
    """
    there = [each for each in (edges.relations if edges else {}).values() if each.now and each.before]
    return sum(each.removed for each in there) / sum(each.before for each in there) if there else None


def _own(gates: DataGates, report: SnapshotReport) -> Iterator[Check]:
    """Check the figures of the snapshot itself."""
    if gates.min_edges.asked:
        yield gates.min_edges.judge("min_edges", report.edges, f"{report.edges} edges", "{:.0f}")
    for name, limit, count, what in (
        ("max_duplicates", gates.max_duplicates, report.duplicates, "repeat an earlier one"),
        ("max_self_loops", gates.max_self_loops, report.self_loops, "lead from an entity to itself"),
    ):
        if limit.asked:
            share = count / report.edges
            yield limit.judge(name, share, f"{percent(share)} of the edges {what}", _SHARE)


def _volumes(gates: DataGates, volumes: Sequence[Volume]) -> Iterator[Check]:
    """Check the number of rows against those of the snapshots before."""
    for volume in volumes:
        before = "snapshot before" if volume.snapshots == 1 else f"last {volume.snapshots} snapshots (median)"
        measured = f"{volume.ratio:.2f} times as many edges as the {before}"
        for name, limit in (("min_volume", gates.min_volume), ("max_volume", gates.max_volume)):
            if limit.asked:
                yield limit.judge(f"{name} of {volume.window}", volume.ratio, measured)


def _compared(gates: DataGates, difference: Difference) -> Iterator[Check]:
    """Check the differences from the snapshot of the last release."""
    if difference.edges is not None and difference.edges.before:
        yield from _edges(gates, difference.since, difference.edges)
    for entity, distance in difference.degrees.items():
        limit = gates.degree_distance(entity)
        if limit.asked:
            measured = f"the degrees of {entity} are distributed otherwise than in {difference.since!r} (distance "
            name = f"max_degree_distance of {entity}"
            yield limit.judge(name, distance, f"{measured}{distance:.3f})")
    if difference.since is not None and gates.changed_columns != "ignore":
        changed, blocks = bool(difference.columns), gates.changed_columns == "block"
        sentence = "; ".join(difference.columns) or "the files have the columns they had"
        yield Check("changed_columns", not (changed and blocks), None, None, sentence, warned=changed and not blocks)


def _edges(gates: DataGates, since: str | None, edges: EdgeChanges) -> Iterator[Check]:
    least = "" if edges.exact else "at least "  # not exact where only numbers of rows are known
    gone = {name: each for name, each in edges.relations.items() if each.before and not each.now}
    largest = sorted(gone, key=lambda name: -gone[name].before)[:_SHOWN_RELATIONS]
    of_relations = sum(each.before for each in gone.values())
    named = f" ({', '.join(largest)}{', ...' if len(gone) > len(largest) else ''})" if gone else ""
    for name, limit, count, what in (
        ("max_added_edges", gates.max_added_edges, edges.added, f"of the number of edges of {since!r} came anew"),
        ("max_removed_edges", gates.max_removed_edges, edges.removed, f"of the edges of {since!r} are gone"),
        (
            "max_gone_relations",
            gates.max_gone_relations,
            of_relations,
            f"of the edges of {since!r} were of relations that have none any more{named}",
        ),
    ):
        if limit.asked:
            share = count / edges.before
            yield limit.judge(name, share, f"{least}{percent(share)} {what}", _SHARE)
