"""Document of a channel: one night after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.config.results import NOTHING_RANKED, KnownEntities, Metrics, ReleaseData
from pbg_tasks.report.run import approved, state

if TYPE_CHECKING:
    from pbg_tasks.config.results import DriftResult
    from pbg_tasks.publish import Release
    from pbg_tasks.report.documents import HistoryDocument, Night, OfRelease
    from pbg_tasks.report.facts import GraphFacts, RunFacts


def history_document(graph: GraphFacts) -> HistoryDocument:
    """Return the document of a channel's page.

    It has the nights, oldest snapshot first, and the snapshots that the channel went without.
    """
    releases = {release.run: release for release in graph.releases}
    runs = {run.run_id: run for run in graph.runs}
    nights = [_of_run(run, releases.get(run_id), graph) for run_id, run in runs.items()]
    nights += [_of_release(release, graph) for run_id, release in releases.items() if run_id not in runs]
    without = graph.refused.keys() - {release.snapshot for release in graph.releases}  # approved ones have a release
    return {
        "kind": "history",
        "graph": graph.graph,
        "channel": graph.channel,
        "store": graph.store,
        "current": graph.current,
        "nights": sorted(nights, key=lambda night: (snapshot_order(night["snapshot"]), night["planned"] or 0.0)),
        "refused": [{"snapshot": key, "reason": graph.refused[key]} for key in sorted(without, key=snapshot_order)],
        "left_out": graph.left_out,
        "searches": [*graph.searches],
    }


def _of_run(run: RunFacts, release: Release | None, graph: GraphFacts) -> Night:
    results = run.results
    ranked = results.eval.filtered if results.eval is not None else NOTHING_RANKED
    entities = results.partition.entities if results.partition is not None else None
    return {
        "reported": run.run_id in graph.reported,
        "snapshot": run.spec.snapshot,
        "run": run.run_id,
        "planned": run.planned,
        "state": state(run),
        **_release(release, graph),
        "mrr": ranked.figure("mrr"),
        "hits10": ranked.figure("hits10"),
        "edges": results.validate.edges if results.validate is not None else None,
        "entities": entities.total if entities is not None else None,
        "new": entities.new if entities is not None else None,
        "gone": entities.gone if entities is not None else None,
        "cosine": _cosine(results.drift),
        "seconds": results.seconds if results.finished else None,
        "warm_start": run.spec.previous is not None and run.spec.previous.warm_start,
        "reason": _reason(run),
    }


def _of_release(release: Release, graph: GraphFacts) -> Night:
    """Return the night of a release whose run was not read."""
    data, ranked = ReleaseData.model_validate(release.data), Metrics.model_validate(release.metrics).filtered
    entities = data.entities or KnownEntities()
    return {
        "reported": False,
        "snapshot": release.snapshot,
        "run": release.run,
        "planned": None,
        "state": "released",
        **_release(release, graph),
        "mrr": ranked.figure("mrr"),
        "hits10": ranked.figure("hits10"),
        "edges": data.edges,
        "entities": entities.total,
        "new": entities.new,
        "gone": entities.gone,
        "cosine": None,
        "seconds": None,
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


def _cosine(drift: DriftResult | None) -> float | None:
    """Return the mean cosine of all types, weighted by common entities."""
    types = drift.types.values() if drift is not None else ()
    means = [(found.cosine.mean, found.common) for found in types if found.cosine.mean is not None]
    total = sum(common for _, common in means)
    return float(sum(mean * common for mean, common in means) / total) if total else None


def _reason(run: RunFacts) -> str | None:
    """Return the first reason why a run stays refused.

    For a damaged run it is the reason why the run cannot be shown.
    """
    if run.damaged:
        return run.damaged
    if state(run) != "refused":
        return None
    for task, verdict in run.results.verdicts.items():
        if not verdict.passed and not approved(run, task):
            return next((check.sentence for check in verdict.checks if not check.passed), None)
    return run.refused
