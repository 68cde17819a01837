"""``publish``: point a channel to a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.advice import way_to
from pbg_tasks.config.base import digest
from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.config.results import (
    EvalResult,
    GateResult,
    KnownEntities,
    Metrics,
    PartitionResult,
    PlanResult,
    PreserveResult,
    PublishFindings,
    PublishResult,
    ReleaseData,
    Result,
    ValidateResult,
)
from pbg_tasks.config.run import RunLayout, id_layout, vector_space
from pbg_tasks.errors import ConflictError, QualityGateError
from pbg_tasks.evaluate.gate import FALLS
from pbg_tasks.progress import fraction, say
from pbg_tasks.publish import Channel
from pbg_tasks.tasks.announcing import is_announced
from pbg_tasks.tasks.approval import approval, decisions, how_to_approve
from pbg_tasks.tasks.context import RunContext, perform
from pbg_tasks.tasks.nightly.comparison_target import incomparable, replaced_release

if TYPE_CHECKING:
    from pbg_tasks.publish import Release


def publish(url: str) -> Result:
    """Publish a run that passed the gate or was approved.

    A run whose spec has ``publish: false`` is left out. Done again, it reports the release's present state: a channel
    that went on, or was rolled back, does not serve it any more. For a release that is served, ``announced`` is true
    once it was announced.

    Raises:
        ConflictError: the channel moved on since the run was planned, or to a better release of its snapshot.
        QualityGateError: the run did not pass the gate, and there is no approval.
    """
    result = perform(PublishResult, url, _publish)
    if not result.published:
        return result.document()
    run = RunContext.open(url)
    channel = Channel(run.store, run.spec.graph.channel)
    there = channel.current().release
    if there is not None and (there.seq, there.run) == (result.release, run.run_id):
        return result.document() | {"announced": is_announced(run.store, run.run_id, "publish")}
    if there is None:
        again = _way_of_lost(run, None)
        reason = f"it was published before; channel {channel.name!r} has lost its releases since; {again}"
    else:
        reason = _why_left(run, channel, there, result.release or 0)
    say(f"publish: {reason}")
    return result.document() | {"published": False, "reason": reason}


def _publish(run: RunContext) -> PublishFindings:
    if not run.need(GateResult).passed and approval(run, "gate") is None:
        raise QualityGateError(f"{run.url}: did not pass the gate; {how_to_approve(run.url)} publishes it all the same")
    graph, previous = run.spec.graph, run.spec.previous
    if not run.spec.publish:
        return PublishFindings(published=False, reason="the run was planned not to be published")
    preserved, evaluated = run.need(PreserveResult), run.need(EvalResult).document()
    channel = Channel(run.store, graph.channel)
    release, points = channel.publish(
        {
            "graph": graph.graph,
            "run": run.run_id,
            "snapshot": run.spec.snapshot,
            "directory": preserved.directory,
            "manifest_sha256": preserved.manifest_sha256,
            "id_layout": id_layout(graph.model),
            "vector_space": vector_space(graph.model),
            "split": digest(graph.split.model_dump(mode="json")),
            "metrics": {key: value for key, value in evaluated.items() if key not in _OF_THE_TASK},
            "data": _data(run).document(),
        },
        planned_on=previous.seq if previous else None,
        independent=run.spec.walk == "independent",
        check=lambda _: _check_replaced(run),  # also of a release that moves the channel meanwhile
    )
    url = f"{run.store.url}/{release.directory}"
    say(f"publish: release {release.seq} of channel {graph.channel}: {url}")
    reason = "" if points else _why_not(channel, release)
    return PublishFindings(published=points, reason=reason, channel=graph.channel, release=release.seq, directory=url)


def _check_replaced(run: RunContext) -> None:
    """Refuse to replace a better release that the gate did not see.

    The gate compares the run with the release of its snapshot that was there when it was evaluated. Of a later one only
    the figures of its own night are known.

    Raises:
        ConflictError: such a release has a higher filtered MRR, and no person approved the run.
    """
    there = replaced_release(run)
    if there is None:
        return
    evaluated = run.need(EvalResult)
    seen = evaluated.replaced
    if seen is not None and seen.release == there.seq:
        sides = seen.candidate, seen.current
        figures = " -> ".join(fraction(each.filtered.figure("mrr") or 0.0) for each in sides[::-1])
        compared = f"filtered MRR {figures} on the same edges" if seen.edges else f"not compared: {seen.reason}"
        say(f"publish: takes the place of release {there.seq} of this snapshot; {compared}")
        return
    theirs = Metrics.model_validate(there.metrics).filtered.figure("mrr") or 0.0
    ours = evaluated.filtered.figure("mrr") or 0.0
    if incomparable(run, there) is None and ours < theirs and approval(run, "gate") is None:
        raise ConflictError(
            f"{run.url}: release {there.seq} (run {there.run}) of snapshot {there.snapshot} was published since this "
            f"run was evaluated; its filtered MRR is {fraction(theirs)}, that of this run {fraction(ours)}; leave it, "
            f"or roll back from it by `pbg rollback SPEC --channel {run.spec.graph.channel}` and publish this run again"
        )


def _why_not(channel: Channel, release: Release) -> str:
    there = channel.current().release
    if there is not None and snapshot_order(there.snapshot) <= snapshot_order(release.snapshot):
        way = way_to(channel.name, release.seq)
        return f"channel {channel.name!r} was rolled back to release {there.seq} meanwhile; {way} brings it back"
    return f"channel {channel.name!r} already serves a newer snapshot"


def _why_left(run: RunContext, channel: Channel, there: Release, number: int) -> str:
    """Return the reason why a channel left a release."""
    snapshot, releases = run.spec.snapshot, list(channel.releases())
    reason = f"channel {channel.name!r} serves release {there.seq} now"
    if later := [each.seq for each in releases if each.snapshot == snapshot and each.seq > number]:
        reason = f"release {max(later)} took its place; {reason}"
    if snapshot_order(there.snapshot) <= snapshot_order(snapshot):
        is_kept = any((each.seq, each.run) == (number, run.run_id) for each in releases)
        way = f"{way_to(channel.name, number)} brings it back"
        reason = f"{reason}; {way if is_kept else f'release {number} is lost; {_way_of_lost(run, there)}'}"
    return f"it was published before; {reason}"


def _way_of_lost(run: RunContext, there: Release | None) -> str:
    """Return how a run whose release is lost becomes one again.

    A plan of its snapshot makes the same run where the channel points to what it continues.
    """
    previous = run.spec.previous
    continued, points_to = ((each.seq, each.run) if each else None for each in (previous, there))
    if run.spec.walk == "independent" or continued == points_to:
        return f"remove {run.url}/{RunLayout.result(PublishResult.TASK)} and run it again"
    return f"plan the snapshot {run.spec.snapshot!r} again"


def _data(run: RunContext) -> ReleaseData:
    """Return the facts of a snapshot that later nights compare theirs with.

    Includes the acceptance of the data gate and the decisions of users, with their names and reasons.
    """
    validated, partitioned = run.need(ValidateResult), run.need(PartitionResult)
    data = ReleaseData(
        edges=validated.edges,
        earlier_edges=validated.earlier_edges,
        entities=KnownEntities.model_validate(partitioned.entities.document()),
        columns=validated.columns,
        degrees=run.need(PlanResult).degrees,
    )
    if run.spec.accepted is not None and any(each.data_gate.accepted for each in (validated, partitioned)):
        data = data.model_copy(update={"accepted": run.spec.accepted})
    fell = (check for check in run.need(GateResult).checks if check.name in FALLS and not check.passed)
    if any(check.value is not None for check in fell):
        data = data.model_copy(update={"fall_approved": True})
    if decided := decisions(run):
        data = data.model_copy(update={"decisions": decided})
    return data


# `against`, `best`, `replaced`, `coverage` and `drift` compare the run with an earlier release, and `kept` is for the
# next night: they are no figures of its own.
_OF_THE_TASK = ("task", "run", "seconds", "usage", "parts", "against", "best", "replaced", "coverage", "drift", "kept")
