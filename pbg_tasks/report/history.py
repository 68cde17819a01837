"""Document of a channel: one night after another."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.config.results import NOTHING_RANKED, KnownEntities, Metrics, ReleaseData
from pbg_tasks.forecast.usage import is_of_last_try
from pbg_tasks.report.run import forecast_tasks, reason, state

if TYPE_CHECKING:
    from pbg_tasks.config.results import DriftResult, EvalResult
    from pbg_tasks.publish import Release
    from pbg_tasks.report.documents import HistoryDocument, MrrLimits, Night, OfRelease, State
    from pbg_tasks.report.facts import GraphFacts, RunFacts


def history_document(graph: GraphFacts) -> HistoryDocument:
    """Return the document of a channel's page.

    It has the nights, oldest snapshot first, and the snapshots that the channel went without.
    """
    served = [release for release in graph.releases if release.seq == graph.current]
    releases = {release.run: release for release in [*graph.releases, *served]}  # a run may have two
    runs = {run.run_id: run for run in graph.runs}
    nights = [_of_run(run, releases.get(run_id), graph) for run_id, run in runs.items()]
    nights += [_of_release(release, graph) for run_id, release in releases.items() if run_id not in runs]
    nights += [
        early_night(snapshot, told["reason"], datetime.fromisoformat(told["at"]).timestamp())
        for snapshot, told in graph.unplanned.items()
        if snapshot not in graph.refused
    ]
    return {
        "kind": "history",
        "graph": graph.graph,
        "channel": graph.channel,
        "read_channel": graph.read_channel or graph.channel,
        "store": graph.store,
        "current": graph.current,
        "readers": [*graph.readers],
        "limits": _limits(graph, nights),
        "nights": sorted(nights, key=night_order),
        "refused": [{"snapshot": key, "reason": graph.refused[key]} for key in _without_release(graph)],
        "left_out": graph.left_out,
        "searches": [*graph.searches],
    }


def _without_release(graph: GraphFacts) -> list[str]:
    """Return the snapshots that the channel went without, oldest first.

    A mark stays for good, also where its snapshot was mended or approved and has a release. So once releases are
    removed, perhaps between others that are pinned, of snapshots before all later releases only those are known that
    still have a run.
    """
    released = {release.seq: release.snapshot for release in graph.releases}
    without = sorted(graph.refused.keys() - {*released.values()}, key=snapshot_order)
    removed = max({*range(1, max(released, default=0))} - released.keys(), default=0)
    if not removed:
        return without
    planned = {run.spec.snapshot for run in graph.runs}
    oldest = min(snapshot_order(snapshot) for seq, snapshot in released.items() if seq > removed)
    return [key for key in without if key in planned or snapshot_order(key) > oldest]


def _limits(graph: GraphFacts, nights: list[Night]) -> MrrLimits:
    """Return the limits of the MRR by the newest night's gates.

    A trial may have others.
    """
    newest = max((run for run in graph.runs if run.spec.publish), key=lambda run: run.planned or 0.0, default=None)
    if newest is None:
        return {"floor": None, "fall": None, "current": None}
    gates = newest.spec.graph.gates
    mrr = next((night["mrr"] for night in nights if night["current"]), None)
    fall = mrr * (1 - gates.max_mrr_drop) if mrr is not None else None
    return {"floor": gates.min_mrr or None, "fall": fall, "current": mrr}


def night_order(night: Night) -> tuple[object, float]:
    """Return the key that sorts nights by snapshot, then by planning."""
    return snapshot_order(night["snapshot"]), night["planned"] or 0.0


def _of_run(run: RunFacts, release: Release | None, graph: GraphFacts) -> Night:
    results = run.results
    ranked = results.eval.filtered if results.eval is not None else NOTHING_RANKED
    entities = results.partition.entities if results.partition is not None else None
    return {
        "reported": run.run_id in graph.reported,
        "page": None,
        "snapshot": run.spec.snapshot,
        "run": run.run_id,
        "planned": run.planned,
        "begun": run.begun,
        "state": state(run),
        **_release(release, graph),
        "mrr": ranked.figure("mrr"),
        "change": _change(results.eval),
        "hits10": ranked.figure("hits10"),
        "edges": results.validate.edges if results.validate is not None else None,
        "entities": entities.total if entities is not None else None,
        "new": entities.new if entities is not None else None,
        "gone": entities.gone if entities is not None else None,
        "cosine": _cosine(results.drift),
        "seconds": _seconds(run),
        "forecast": _forecast(run),
        "warm_start": run.spec.previous is not None and run.spec.previous.warm_start,
        "reason": reason(run),
    }


def _of_release(release: Release, graph: GraphFacts) -> Night:
    """Return the night of a release whose run was not read."""
    data, ranked = ReleaseData.model_validate(release.data), Metrics.model_validate(release.metrics).filtered
    entities = data.entities or KnownEntities()
    return {
        **_unknown_night(release.snapshot, release.run, "released"),
        **_release(release, graph),
        "reported": release.run in graph.reported,
        "mrr": ranked.figure("mrr"),
        "hits10": ranked.figure("hits10"),
        "edges": data.edges,
        "entities": entities.total,
        "new": entities.new,
        "gone": entities.gone,
    }


def early_night(snapshot: str, reason: str, planned: float | None, page: str | None = None) -> Night:
    """Return a night that failed before it had a run.

    Args:
        snapshot: its key.
        reason: why it failed.
        planned: when that was, in seconds since 1970.
        page: address of the night in Airflow.
    """
    return {**_unknown_night(snapshot, "", "failed"), "page": page, "planned": planned, "reason": reason}


def _unknown_night(snapshot: str, run: str, state: State) -> Night:
    """Return a night of which nothing else is known."""
    return {
        "reported": False,
        "page": None,
        "snapshot": snapshot,
        "run": run,
        "planned": None,
        "begun": None,
        "state": state,
        "release": None,
        "published": None,
        "current": False,
        "mrr": None,
        "change": None,
        "hits10": None,
        "edges": None,
        "entities": None,
        "new": None,
        "gone": None,
        "cosine": None,
        "seconds": None,
        "forecast": None,
        "warm_start": None,
        "reason": None,
    }


def _release(release: Release | None, graph: GraphFacts) -> OfRelease:
    if release is None:
        return {"release": None, "published": None, "current": False}
    return {
        "release": release.seq,
        "published": graph.released.get(release.seq),
        "current": release.seq == graph.current,
    }


def _seconds(run: RunFacts) -> float | None:
    """Return the seconds of the finished tasks.

    None where the training resumed: its result has the time of its last try alone, and the night would look quick.
    """
    trained = run.results.train
    is_whole = run.results.finished and not (trained is not None and is_of_last_try(trained))
    return run.results.seconds if is_whole else None


def _forecast(run: RunFacts) -> float | None:
    """Return the seconds that the night was forecast to take."""
    tasks = forecast_tasks(run)
    return sum(usage.seconds for usage in tasks.values()) if tasks else None


def _change(evaluated: EvalResult | None) -> float | None:
    """Return the change of the MRR on edges that both know."""
    against = evaluated.against if evaluated is not None else None
    return against.difference.get("mrr") if against is not None else None


def _cosine(drift: DriftResult | None) -> float | None:
    """Return the mean cosine of all types, weighted by common entities."""
    types = drift.types.values() if drift is not None else ()
    means = [(found.cosine.mean, found.common) for found in types if found.cosine.mean is not None]
    total = sum(common for _, common in means)
    return float(sum(mean * common for mean, common in means) / total) if total else None
