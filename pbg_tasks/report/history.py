"""The document of a channel: one night after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.report.run import state

if TYPE_CHECKING:
    from pbg_tasks.publish import Release
    from pbg_tasks.report.facts import GraphFacts, Result, RunFacts


def history_document(graph: GraphFacts) -> Result:
    """Return what the page of a channel shows: its nights, oldest snapshot first, and the snapshots it went without."""
    releases = {release.run: release for release in graph.releases}
    runs = {run.run_id: run for run in graph.runs}
    nights = [_of_run(run, releases.get(run_id), graph) for run_id, run in runs.items()]
    nights += [_of_release(release, graph) for run_id, release in releases.items() if run_id not in runs]
    without = graph.refused.keys() - {release.snapshot for release in graph.releases}  # what was approved has a release
    return {
        "kind": "history",
        "graph": graph.graph,
        "channel": graph.channel,
        "store": graph.store,
        "current": graph.current,
        "nights": sorted(nights, key=lambda night: (snapshot_order(night["snapshot"]), night["planned"] or 0.0)),
        "refused": [{"snapshot": key, "reason": graph.refused[key]} for key in sorted(without, key=snapshot_order)],
        "left_out": graph.left_out,
    }


def _of_run(run: RunFacts, release: Release | None, graph: GraphFacts) -> Result:
    evaluated, results = run.results.get("eval", {}), run.results
    entities = results.get("partition", {}).get("entities", {})
    return {
        "reported": run.run_id in graph.reported,
        "snapshot": run.spec.snapshot,
        "run": run.run_id,
        "planned": run.planned,
        "state": state(run),
        **_release(release, graph),
        "mrr": evaluated.get("filtered", {}).get("mrr"),
        "hits10": evaluated.get("filtered", {}).get("hits10"),
        "edges": results.get("validate", {}).get("edges"),
        "entities": entities.get("total"),
        "new": entities.get("new"),
        "gone": entities.get("gone"),
        "cosine": _cosine(results.get("drift")),
        "seconds": sum(result["seconds"] for result in results.values()) if results else None,
        "warm_start": run.spec.previous is not None and run.spec.previous.warm_start,
        "reason": _reason(run),
    }


def _of_release(release: Release, graph: GraphFacts) -> Result:
    """Return the night of a release whose run is not among those that were read."""
    entities = release.data.get("entities") or {}
    return {
        "reported": False,
        "snapshot": release.snapshot,
        "run": release.run,
        "planned": None,
        "state": "released",
        **_release(release, graph),
        "mrr": release.metrics.get("filtered", {}).get("mrr"),
        "hits10": release.metrics.get("filtered", {}).get("hits10"),
        "edges": release.data.get("edges"),
        "entities": entities.get("total"),
        "new": entities.get("new"),
        "gone": entities.get("gone"),
        "cosine": None,
        "seconds": None,
        "warm_start": None,
        "reason": None,
    }


def _release(release: Release | None, graph: GraphFacts) -> Result:
    if release is None:
        return {"release": None, "published": None, "current": False}
    return {
        "release": release.seq,
        "published": graph.released.get(release.seq),
        "current": release.seq == graph.current,
    }


def _cosine(drift: Result | None) -> float | None:
    """Return the mean cosine of all types that have one, weighted by the entities they have in common."""
    types = [found for found in (drift or {}).get("types", {}).values() if found["cosine"]["mean"] is not None]
    total = sum(found["common"] for found in types)
    if not total:
        return None
    return float(sum(found["cosine"]["mean"] * found["common"] for found in types) / total)


def _reason(run: RunFacts) -> str | None:
    """Return the first reason why a run stays refused, or why it cannot be shown."""
    if run.damaged:
        return run.damaged
    if state(run) != "refused":
        return None
    verdicts = {task: run.results.get(task, {}).get("data_gate", {}) for task in ("validate", "partition")}
    verdicts["gate"] = run.results.get("gate", {})
    for task, verdict in verdicts.items():
        if not verdict.get("passed", True) and not run.decisions.get(task, {}).get("approved"):
            return next((str(check["sentence"]) for check in verdict["checks"] if not check["passed"]), None)
    return run.refused
