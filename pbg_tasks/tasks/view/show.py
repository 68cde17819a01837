"""``show``: all results of a run, and the releases of a channel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pbg_tasks.config import RunLayout
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.config.night_results import NightResults, beyond_approval
from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.config.results import SHAPES, ExportResult, Metrics, PlanResult, ReleaseData
from pbg_tasks.errors import BY_KIND, InputError, PbgError, QualityGateError
from pbg_tasks.forecast.outcome import compare
from pbg_tasks.publish import Channel, channel_names
from pbg_tasks.publish.descent import descent
from pbg_tasks.publish.retention import pins
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.approval import approval, decisions, how_to_approve
from pbg_tasks.tasks.context import RunContext, chain_task, graph_store
from pbg_tasks.tasks.failure import read_failure
from pbg_tasks.tasks.view.days_left import after_release, broken_nights, without_release
from pbg_tasks.tasks.view.readers import readers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pbg_tasks.config import GraphSpec
    from pbg_tasks.config.results import (
        BothWays,
        BucketResult,
        DriftResult,
        EvalResult,
        Figures,
        GateResult,
        PublishResult,
        Result,
        TypeDrift,
    )
    from pbg_tasks.forecast.outcome import Outcome
    from pbg_tasks.publish.release import Pointer
    from pbg_tasks.report.documents import Failed, Stored
    from pbg_tasks.storage import Store
    from pbg_tasks.tasks.view.readers import Readers
    from pbg_tasks.tasks.view.summary import (
        AgainstSummary,
        Changes,
        DataSummary,
        DriftSummary,
        Overview,
        ReleaseRow,
        ReleaseSummary,
        Summary,
    )


def show(url: str) -> Summary:
    """Collect what the finished tasks of a run found."""
    run = RunContext.open(url)
    results = NightResults.of(run.find(shape) for shape in SHAPES.values())
    bucketed, partitioned = results.bucket, results.partition
    trained = results.train
    early = trained.early_stopping if trained is not None else None
    refused, failed = _refusing(run, results), run.failure(results.finished)
    return {
        "graph": run.spec.graph.graph,
        "snapshot": run.spec.snapshot,
        "run": run.url,
        "finished": list(results.finished),
        "refused": refused,
        "failed": failed,
        "advice": _advice(run, results, refused, failed),
        "release": _release(run, results.publish),
        "exports": _exports(run),
        "forecast": _forecast(results),
        "tasks": {task: {"seconds": seconds} for task, seconds in results.times.items()},
        "edges": bucketed.edges.document() if bucketed is not None else {},
        "entities": partitioned.entities.document() if partitioned is not None else {},
        "relations": partitioned.relations if partitioned is not None else None,
        "epochs": trained.epochs if trained is not None else None,
        "best_epoch": early.best_epoch if early is not None else None,
        "delta_edges": _delta_edges(bucketed),
        "warm_start": trained.warm_start if trained is not None else None,
        "loss": trained.loss if trained is not None else None,
        "curve": trained.curve if trained is not None else [],
        "edges_per_second": trained.edges_per_second if trained is not None else None,
        "metrics": _metrics(results.eval),
        "against": _against(results.eval),
        "drift": _drift(results.drift),
        "gate": _gate(results.gate),
        "decisions": decisions(run),
        "data": _data(results),
        "changes": _changes(run, results),
    }


def _delta_edges(bucketed: BucketResult | None) -> int | None:
    """Return the number of edges that a delta epoch trains.

    None where epochs are whole.
    """
    return sum(map(sum, bucketed.trained)) if bucketed is not None and bucketed.delta_matrix is not None else None


def _refusing(run: RunContext, results: NightResults) -> str | None:
    """Return the last task that refused a run without an approval.

    It is ``plan`` where the forecast is beyond the spec's limits: that leaves no verdict, and no task has begun.
    """
    if [*results.finished] == [PlanResult.TASK]:
        begun = read_failure(run.store, run.run_id) is not None
        return None if begun or run.refusal() is None else PlanResult.TASK
    refusing = (task for task, verdict in results.verdicts.items() if not verdict.passed)
    return next((task for task in reversed([*refusing]) if approval(run, task) is None), None)


def _advice(run: RunContext, results: NightResults, refused: str | None, failed: Failed | None) -> str | None:
    """Return how a refused or failed run goes on, in words.

    None where the reason itself has that.
    """
    day = run.spec.snapshot
    if refused == PlanResult.TASK:
        again = f"raise `limits`, or `pbg run SPEC {day}` with its options and --accept-data REASON"
        return f"{run.refusal()}; to let {day} pass: {again}; later nights go on without it"
    if refused is not None:
        rejected = any(each["task"] == refused for each in decisions(run))
        if rejected or beyond_approval(results.verdicts[refused]):
            return None
        again = f"{how_to_approve(run.url)}, `pbg run SPEC {day}` with its options"
        return f"to let {day} pass: {again}; later nights go on without it"
    if failed is None or issubclass(BY_KIND.get(failed["kind"], PbgError), QualityGateError):
        return None
    again = f"to try it again: `pbg run SPEC {day}` with its options"
    if chain_task(failed["task"]) is None:
        return again
    return f"{again}; to go on without {day}: `pbg skip SPEC {day}`"


def show_task(url: str, task: str) -> Result:
    """Return what one task of a run found.

    Raises:
        ConfigError: it has not finished.
    """
    return RunContext.open(url).require(task)


def _forecast(results: NightResults) -> Outcome | None:
    """Return the plan's forecast beside the results of finished tasks.

    None for a run that was planned without a forecast.
    """
    forecast = results.plan.forecast if results.plan is not None else None
    return compare(forecast, results.finished) if forecast is not None else None


def _metrics(evaluated: EvalResult | None) -> dict[str, Stored]:
    """Return the figures of each kind that was ranked."""
    if evaluated is None:
        return {}
    kinds: dict[str, Figures | None] = {
        "raw": evaluated.raw,
        "filtered": evaluated.filtered,
        "random": evaluated.random,
        "popularity": evaluated.popularity,
    }
    return {kind: found for kind, figures in kinds.items() if figures is not None and (found := figures.document())}


def _against(evaluated: EvalResult | None) -> AgainstSummary | None:
    """Return the filtered MRR of the run and of the release before.

    Both on the same edges; None where they have none in common.
    """
    against = evaluated.against if evaluated is not None else None
    if against is None:
        return None
    candidate, current = _filtered_mrr(against.candidate), _filtered_mrr(against.current)
    return None if candidate is None or current is None else {"candidate": candidate, "current": current}


def _filtered_mrr(found: BothWays | Metrics) -> float | None:
    return found.filtered.figure("mrr")


def _drift(drift: DriftResult | None) -> DriftSummary:
    """Return the mean cosine and overlap of all types that have one.

    Weighted by the entities in common.
    """
    types: Sequence[TypeDrift] = list(drift.types.values()) if drift is not None else []
    return {
        "cosine": _mean((each.cosine.mean, each.common) for each in types),
        "overlap": _mean((each.overlap.mean, each.common) for each in types),
    }


def _mean(found: Iterator[tuple[float | None, int]]) -> float | None:
    known = [(value, common) for value, common in found if value is not None]
    entities = sum(common for _, common in known)
    return round(sum(value * common for value, common in known) / entities, 6) if entities else None


def _gate(gated: GateResult | None) -> Stored:
    """Return the verdict of the quality gate."""
    return {} if gated is None else {"passed": gated.passed, "checks": [check.document() for check in gated.checks]}


def _data(results: NightResults) -> DataSummary:
    """Return the snapshot's changes and the data gate's verdict."""
    validated = results.validate
    verdicts = [verdict for task, verdict in results.verdicts.items() if task != "gate"]
    difference = validated.difference if validated is not None else None
    return {
        "difference": difference.document() if difference is not None else None,
        "passed": all(verdict.passed for verdict in verdicts) if verdicts else None,
        "accepted": next((verdict.accepted for verdict in verdicts if verdict.accepted), None),
        "checks": [check.document() for verdict in verdicts for check in verdict.checks],
    }


def _release(run: RunContext, published: PublishResult | None) -> ReleaseSummary | None:
    if published is None or not published.release:
        return None
    pointer = Channel(run.store, published.channel or run.spec.graph.channel).current()
    served = pointer.release.seq if pointer.release is not None else published.release
    return {
        "channel": published.channel,
        "release": published.release,
        "directory": published.directory,
        "published": published.published,
        "rolled_back": published.release > served and pointer.may_have_left(published.release),
    }


def _exports(run: RunContext) -> dict[str, str]:
    """Return the destination of each finished export."""
    results = {export.name: run.find(ExportResult, export.task) for export in run.spec.graph.exports}
    return {name: result.destination for name, result in results.items() if result is not None}


def _changes(run: RunContext, results: NightResults) -> Changes:
    """Compare a run with the release it continues, if that still exists."""
    previous = run.spec.previous
    if previous is None or results.eval is None:
        return {}
    try:
        before = Channel(run.store, run.spec.graph.channel).release(previous.seq)
    except InputError:
        return {}
    edges, against = ReleaseData.model_validate(before.data).edges, _against(results.eval)
    now = results.bucket.edges.total if results.bucket is not None else None
    entities = results.partition.entities if results.partition is not None else None
    return {
        "since": previous.snapshot,
        "edges": None if edges is None or now is None else now - edges,  # an adopted checkpoint has no number
        "new_entities": entities.new if entities is not None else None,
        "gone_entities": entities.gone if entities is not None else None,
        "filtered_mrr": round(against["candidate"] - against["current"], 8) if against is not None else None,
    }


def overview(url: str | Path) -> Overview:
    """Collect a graph's releases, and the run that is served.

    Args:
        url: path of a graph spec, whose channel is shown, or a store, all of whose channels are.

    Raises:
        InputError: nothing is at the place, or the store has no channel with a release.
    """
    if isinstance(url, Path):
        graph = load_graph_spec(url)
        store, names = graph_store(graph), _names(graph)
        broken = {name: nights for name, nights in broken_nights(store, graph.graph).items() if name in names}
    else:
        store = open_store(url)
        broken = broken_nights(store)
        names = list(dict.fromkeys([*channel_names(store), *broken]))
        if not names and next(store.list(), None) is None:
            raise InputError(f"{url}: nothing is there; name a run's URL, a graph spec (.yaml) or a store")
    if not names:
        raise InputError(f"{store.url}: no release here yet; `pbg run SPEC` makes one, `pbg show RUN` shows a run")
    channels = releases_of([Channel(store, name) for name in names])
    newest = max((row for rows in channels.values() for row in rows if row["current"]), key=_age, default=None)
    run = RunContext.within(store, newest["run"]).url if newest is not None and _is_there(store, newest) else None
    left = {name: without_release(Channel(store, name), rows) for name, rows in channels.items()}
    return {
        "store": store.url,
        "channels": channels,
        "without_release": left,
        "failed": {name: after_release(nights, channels[name]) for name, nights in broken.items()},
        "newest": None if run is None else show(run),
    }


def _age(row: ReleaseRow) -> tuple[object, bool, int]:
    """Return what orders releases of several channels by age.

    Their numbers are of each channel alone. A promoted release is older than the night that made it.
    """
    return snapshot_order(row["snapshot"]), row["promoted_from"] is None, row["release"]


def _is_there(store: Store, row: ReleaseRow) -> bool:
    """Return whether the run of a release still exists."""
    return store.head(f"runs/{row['run']}/{RunLayout.spec}") is not None


def history(place: Path | str) -> list[ReleaseRow]:
    """List the releases of a graph, oldest first.

    Those of the channel of nights come before those of the channel that readers follow, if that is another one.

    Args:
        place: the graph spec's file; or, as a text, the store, all of whose channels are listed.

    Raises:
        InputError: the store has no channel with a release.
    """
    if isinstance(place, str):
        store = open_store(place)
        names = channel_names(store)
        if not names:
            raise InputError(
                f"{store.url}: no channel here points to a release; name a graph spec (.yaml) or its store"
            )
    else:
        graph = load_graph_spec(place)
        store, names = graph_store(graph), _names(graph)
    found = releases_of([Channel(store, name) for name in names])
    return [row for rows in found.values() for row in rows]


def _names(graph: GraphSpec) -> list[str]:
    return list(dict.fromkeys([graph.channel, graph.read_channel]))


def releases_of(channels: Sequence[Channel]) -> dict[str, list[ReleaseRow]]:
    """List the releases of channels by name, oldest first, with their readers."""
    pointers = {channel.name: channel.current() for channel in channels}
    readers: Readers = {}
    for channel in channels:
        for release, rows in readers_of(channel, pointers[channel.name]).items():
            readers.setdefault(release, []).extend(rows)
    return {channel.name: _releases(channel, pointers[channel.name], readers) for channel in channels}


def _releases(channel: Channel, pointer: Pointer, readers: Readers) -> list[ReleaseRow]:
    """List the releases of a channel.

    The one that the channel points to has a mark. ``continues`` is the release that a release was trained from, None
    where it began anew or its run is gone; ``descends_from`` the nearest release on that way that counts no longer,
    with the reason in ``because``.
    """
    releases, pinned = list(channel.releases()), pins(channel)
    current, ways = pointer.release, descent(channel, releases, pointer)
    return [
        {
            "channel": channel.name,
            "release": release.seq,
            "snapshot": release.snapshot,
            "run": release.run,
            "filtered_mrr": _filtered_mrr(Metrics.model_validate(release.metrics)),
            "current": current is not None and current.seq == release.seq,
            "pinned": release.seq in pinned,
            "promoted_from": None if (origin := release.promoted) is None else f"{origin.channel} {origin.seq}",
            "readers": readers.get((channel.name, release.seq), []),
            **ways[release.seq],
        }
        for release in releases
    ]
