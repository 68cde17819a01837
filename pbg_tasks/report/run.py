"""The document of one run: everything its page shows, as plain JSON values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.config.base import digest
from pbg_tasks.config.results import PlanResult, models_of
from pbg_tasks.forecast import compare
from pbg_tasks.report.training import training_document

if TYPE_CHECKING:
    from pbg_tasks.report.facts import Result, RunFacts

GATES = {"validate": "data_gate", "partition": "data_gate", "gate": None}
"""Tasks that judge, and under which key of their result the verdict lies (None: it is the result)."""
METRICS = ("mrr", "hits1", "hits10", "hits50", "mr", "auc")
"""Figures of ranks that a page shows; one that a result lacks is shown as missing."""
_DIFFERENCE = ("since", "awaited", "edges", "degrees", "columns", "volumes")


def run_document(run: RunFacts) -> Result:
    """Return what the page of a run shows.

    Parts of tasks that have not finished are None or empty; ``state`` is ``running``, ``refused``, ``finished`` (not to
    be released) or ``released``.
    """
    results, spec = run.results, run.spec
    evaluated = results.get("eval", {})
    return {
        "kind": "run",
        "graph": spec.graph.graph,
        "channel": spec.graph.channel,
        "snapshot": spec.snapshot,
        "run": run.run_id,
        "url": run.url,
        "planned": run.planned,
        "state": state(run),
        "refused": run.refused,
        "accepted": spec.accepted,
        "tasks": _tasks(run),
        "seconds": sum(result["seconds"] for result in results.values()),
        "release": results.get("publish", {}).get("release"),
        "published": results.get("publish", {}).get("published"),
        "warm_start": spec.previous is not None and spec.previous.warm_start,
        "edges": results.get("bucket", {}).get("edges"),
        "entities": results.get("partition", {}).get("entities"),
        "entity_types": results.get("partition", {}).get("types", {}),
        "relations": _relations(run),
        "training": training_document(run),
        "trained": _trained(run),
        "metrics": {
            kind: dict.fromkeys(METRICS) | evaluated[kind]
            for kind in ("filtered", "raw", "popularity", "random")
            if evaluated.get(kind)
        },
        "held_out": evaluated.get("edges"),
        "sampled_from": evaluated.get("held_out"),
        "interval": evaluated.get("interval"),
        "data": _data(run),
        "drift": _drift(results.get("drift")),
        "verdicts": _verdicts(run),
        "forecast": _forecast(run),
        "lineage": _lineage(run),
        "spec": spec.model_dump(mode="json"),
    }


def state(run: RunFacts) -> str:
    """Say how far a run is, in a word."""
    if run.damaged:
        return "damaged"
    verdicts = {task: verdict for task in GATES if (verdict := _verdict(run, task)) is not None}
    if any(not verdict["passed"] and not _approved(run, task) for task, verdict in verdicts.items()):
        return "refused"
    published = run.results.get("publish")
    if published is not None:
        return "released" if "release" in published else "finished"
    return "refused" if run.refused and not any(_approved(run, task) for task in GATES) else "running"


def _verdict(run: RunFacts, task: str) -> Result | None:
    result, key = run.results.get(task), GATES[task]
    return result if result is None or key is None else result.get(key)


def _approved(run: RunFacts, task: str) -> bool:
    return bool(run.decisions.get(task, {}).get("approved"))


def _tasks(run: RunFacts) -> list[Result]:
    """List the tasks; the first that has not finished is under way or comes next, unless the run is over."""
    over = state(run) != "running"
    listed: list[Result] = []
    for task in run.tasks:
        result = run.results.get(task)
        if result is not None:
            listed.append({"name": task, "state": "done", "seconds": result["seconds"]})
        else:
            first = not over and all(each["state"] == "done" for each in listed)
            listed.append({"name": task, "state": "now" if first else "waiting", "seconds": None})
    return listed


def _relations(run: RunFacts) -> list[Result]:
    """Join what is known of each relation: edges, what changed in them, metrics, drift; most edges first."""
    difference = (run.results.get("validate", {}).get("difference") or {}).get("edges") or {}
    changes = difference.get("relations", {})
    evaluated = run.results.get("eval", {}).get("relations", {})
    moved = run.results.get("drift", {}).get("relations", {})
    rows = run.results.get("validate", {}).get("relations", {})
    listed = []
    for name in {**rows, **evaluated}:
        figures = evaluated.get(name, {}).get("filtered", {})
        change, drift = changes.get(name, {}), moved.get(name, {})
        listed.append(
            {
                "name": name,
                "edges": rows.get(name, change.get("rows")),
                "added": change.get("added"),
                "removed": change.get("removed"),
                "queries": figures.get("count"),
                "mrr": figures.get("mrr"),
                "hits1": figures.get("hits1"),
                "hits10": figures.get("hits10"),
                "cosine": drift.get("cosine"),
            }
        )
    return sorted(listed, key=lambda each: (-(each["edges"] or 0), each["name"]))


def _trained(run: RunFacts) -> Result | None:
    trained = run.results.get("train")
    if trained is None:
        return None
    keys = ("engine", "device", "workers", "edges_per_second", "edges_trained", "edges_retrained", "loss")
    return {key: trained.get(key) for key in (*keys, "resumed_from")} | {"ranks": trained.get("ranks", 1)}


def _data(run: RunFacts) -> Result | None:
    validated = run.results.get("validate")
    if validated is None:
        return None
    return {key: validated.get(key) for key in ("edges", "duplicates", "self_loops")} | {
        "difference": dict.fromkeys(_DIFFERENCE) | (validated.get("difference") or {}),
        "degrees": run.results.get("plan", {}).get("degrees", {}),
    }


def _drift(found: Result | None) -> Result | None:
    """Return what ``drift`` found; None on the first night, which has nothing to drift from."""
    return None if found is None or found.get("release") is None else found


def _verdicts(run: RunFacts) -> list[Result]:
    titles = {"validate": "Data gate: snapshot", "partition": "Data gate: entities", "gate": "Quality gate"}
    return [
        {
            "task": task,
            "title": titles[task],
            "passed": verdict["passed"],
            "accepted": verdict.get("accepted"),
            "decision": run.decisions.get(task),
            "checks": [{"warned": False} | check for check in verdict["checks"]],
        }
        for task in GATES
        if (verdict := _verdict(run, task)) is not None
    ]


def _forecast(run: RunFacts) -> Result | None:
    """Set what was expected of each task against what came."""
    results = models_of(run.results)
    plan = results.get("plan")
    if not isinstance(plan, PlanResult) or plan.forecast is None:
        return None
    expected = plan.forecast
    found = compare(expected, results)
    rows = [
        {
            "task": task,
            **{
                field: _beside(found["tasks"].get(task, {}).get(field), value)
                for field, value in usage.document().items()
            },
        }
        for task in run.tasks
        if (usage := expected.tasks.get(task)) is not None
    ]
    keys = ("total_seconds", "cost", "warnings", "calibrated_on", "last_try")
    return {key: found[key] for key in keys} | {"tasks": rows}


def _beside(pair: Result | None, expected: float) -> Result:
    return pair if pair is not None else {"forecast": expected, "actual": None, "ratio": None}


def _lineage(run: RunFacts) -> Result:
    previous, preserved = run.spec.previous, run.results.get("preserve", {})
    return {
        "snapshot": [file.model_dump(mode="json") for file in run.spec.files],
        "previous": None if previous is None else previous.model_dump(mode="json"),
        "spec_sha256": digest(run.spec.model_dump(mode="json")),
        "directory": preserved.get("directory"),
        "manifest_sha256": preserved.get("manifest_sha256"),
        "files": [
            {"name": name, "size": record.size, "sha256": record.sha256} for name, record in sorted(run.files.items())
        ],
    }
