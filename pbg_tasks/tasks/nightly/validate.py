"""``validate``: check every row of the snapshot, and its changes.

It runs before anything is spent on the snapshot.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

import duckdb

from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.config import RunLayout
from pbg_tasks.config.limits import Check, Verdict
from pbg_tasks.config.night_results import NO_EDGES
from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.config.results import (
    DifferenceDocument,
    PlanResult,
    ReleaseData,
    Result,
    ValidateFindings,
    ValidateResult,
)
from pbg_tasks.errors import EvictedError, PbgError
from pbg_tasks.formats.tables import present_files
from pbg_tasks.prepare.comparison import WINDOWS, changed_columns, degree_distance, volumes
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.data_gate import Difference, judge_snapshot
from pbg_tasks.prepare.difference import EDGE_HASHES, EdgeChanges
from pbg_tasks.prepare.kept_edges import KeptEdges
from pbg_tasks.prepare.snapshot import warn_of_fractions
from pbg_tasks.prepare.validate import NoEdgesError, validate_snapshot
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel
from pbg_tasks.publish.descent import rolled_back_from
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.context import RunContext, perform
from pbg_tasks.tasks.files import upload_directory
from pbg_tasks.tasks.nightly.comparison_target import awaited, kept_before, measured_between, nights_apart
from pbg_tasks.tasks.nightly.data_gate import enforce, settle
from pbg_tasks.tasks.nightly.staged import count_snapshot_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.config.results import VerdictDocument
    from pbg_tasks.prepare.validate import SnapshotReport
    from pbg_tasks.publish import Release

_SHOWN_RELATIONS = 1000


def validate(url: str) -> Result:
    """Check a run's snapshot, and compare it with those before.

    Raises:
        InputError: a file is unreadable or a row is bad; it names file and line.
        QualityGateError: it is beyond a limit of ``gates.data``.
        UnusableError: it is empty.
    """
    result = perform(ValidateResult, url, _validate)
    enforce(result)
    return result.document()


def _validate(run: RunContext) -> ValidateFindings:
    graph = run.spec.graph
    channel = Channel(run.store, graph.channel)
    missing = awaited(run)
    release = channel.before(run.spec.snapshot)
    count_snapshot_bytes(run)
    find = _report
    if graph.resources.engine == "spark":
        from pbg_tasks.tasks.nightly.on_spark import validate as find
    try:
        report = find(run, release)
    except NoEdgesError as error:
        nothing = Check(NO_EDGES, passed=False, value=0, limit=None, sentence=str(error))
        return _empty(settle(run, Verdict((nothing,))))
    warn_of_fractions(graph.columns, report.columns)
    if report.weights is not None and report.weights[1] == 0:
        say("warning: all weights are 0, so nothing is learned of these edges")
    earlier = earlier_edges(channel, run.spec.snapshot)
    difference = replace(_difference(run, report, release, list(earlier.values())), awaited=missing)
    tonight = KeptEdges.of_changes(difference.edges)
    kept = kept_before(run) if tonight is not None and tonight.is_low(graph.gates.data) else []
    judge = partial(judge_snapshot, graph.gates.data, report, difference, kept=kept)
    verdict = judge()
    if not verdict.passed:
        nights, measured = nights_apart(run, difference.since), measured_between(run, difference.since)
        verdict = judge(apart=nights, measured=measured)
    return ValidateFindings(
        edges=report.edges,
        self_loops=report.self_loops,
        duplicates=report.duplicates,
        relations=report.relations,
        weights=report.weights,
        columns=report.columns,
        difference=_shown(difference),
        earlier_edges=earlier,
        data_gate=settle(run, _with_entities(run, verdict)),
    )


def _with_entities(run: RunContext, verdict: Verdict) -> Verdict:
    """Add what ``partition`` would refuse to a refusal.

    One approval then covers both. The night is refused already, so where that look ahead fails, ``partition`` judges
    the entities alone: else the refusal would be lost, and with it what later nights and users wait for.
    """
    if verdict.passed or run.spec.accepted is not None:
        return verdict
    from pbg_tasks.tasks.nightly.partition import judge_ahead  # not above: a night that passes does without Arrow

    try:
        ahead = judge_ahead(run)
    except EvictedError:
        raise
    except (PbgError, duckdb.Error, OSError, MemoryError) as error:
        say(f"warning: the entities are judged by partition alone: {error}")
        return verdict
    return Verdict((*verdict.checks, *(check for check in ahead.checks if not check.passed)))


def _report(run: RunContext, release: Release | None) -> SnapshotReport:
    """Check and stage the snapshot with DuckDB."""
    with Scratch() as scratch, connect(run.spec.graph.resources, scratch.path) as connection:
        out = scratch.path / "snapshot"
        out.mkdir()
        before = _edges_before(run, release, scratch.path)
        report = validate_snapshot(connection, run.spec.graph, run.spec.files, before=before, out=out)
        upload_directory(run, RunLayout.snapshot, out)
    return report


def _empty(verdict: VerdictDocument) -> ValidateFindings:
    """Return the figures of a snapshot without an edge."""
    return ValidateFindings(
        edges=0,
        duplicates=0,
        self_loops=0,
        relations={},
        columns={},
        difference=_shown(Difference(since=None, edges=None, degrees={}, columns=[], volumes=[])),
        data_gate=verdict,
    )


def _edges_before(run: RunContext, release: Release | None, directory: Path) -> Path | None:
    """Download the edge hashes of the release before.

    None where it has none.
    """
    if release is None:
        return None
    files = open_preserved(run.store, release.directory, expected_sha256=release.manifest_sha256)
    if not present_files(EDGE_HASHES, files.names):
        say(f"validate: release {release.seq} does not hold the edges of its snapshot; only numbers of rows compare")
        return None
    return files.fetch_table(EDGE_HASHES, directory)


def earlier_edges(channel: Channel, snapshot: str) -> dict[str, int]:
    """Return the numbers of rows of the released snapshots before one.

    As many as the longest window takes, oldest first. Fewer releases may be kept than the window has snapshots, so
    every release also has the numbers of those before it. Snapshots whose releases the channel was rolled back from are
    left out.
    """
    releases = list(channel.releases())
    gone = rolled_back_from(releases, channel.current())
    bad = {release.snapshot for release in releases if release.seq in gone}
    recorded: dict[str, int] = {}
    own: dict[str, int] = {}
    for release in releases:
        if release.seq in gone:
            continue
        known = ReleaseData.model_validate(release.data)
        recorded |= known.earlier_edges
        if known.edges:
            own[release.snapshot] = known.edges
    rows = {key: edges for key, edges in recorded.items() if key not in bad} | own
    before = [key for key in rows if snapshot_order(key) < snapshot_order(snapshot)]
    return {key: rows[key] for key in sorted(before, key=snapshot_order)[-WINDOWS[-1] :]}


def _difference(run: RunContext, report: SnapshotReport, release: Release | None, earlier: list[int]) -> Difference:
    known = ReleaseData.model_validate(release.data if release is not None else {})
    edges = report.changes
    if edges is None and known.edges:
        edges = EdgeChanges.of_rows(now=report.edges, before=known.edges)
    planned = run.find(PlanResult)
    now, then = planned.degrees if planned else {}, known.degrees
    return Difference(
        since=release.snapshot if release is not None else None,
        edges=edges,
        degrees={entity: degree_distance(then[entity], now[entity]) for entity in now if entity in then},
        columns=changed_columns(known.columns, report.columns) if "columns" in known.model_fields_set else [],
        volumes=volumes(report.edges, earlier),
    )


def _shown(difference: Difference) -> DifferenceDocument:
    """Return a difference as stored, of the relations those that changed most.

    The large ones are among them in any case: later nights are compared with their shares.
    """
    edges = difference.edges
    if edges is not None:
        kept = KeptEdges.of_changes(edges)
        large = kept.relations if kept is not None else {}
        by_change = sorted(edges.relations.items(), key=lambda each: -(each[1].added + each[1].removed))
        listed = [each for place, each in enumerate(by_change) if place < _SHOWN_RELATIONS or each[0] in large]
        edges = replace(edges, relations=dict(listed))
    return DifferenceDocument.model_validate(asdict(replace(difference, edges=edges)))
