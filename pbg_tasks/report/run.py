"""Document of one run, with plain JSON values."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from pbg_tasks.config.limits import refusal_by
from pbg_tasks.config.night_results import beyond_approval
from pbg_tasks.config.relations import relation_labels
from pbg_tasks.config.results import NOTHING_RANKED, Expected, Figures, PlanResult, RelationChanges, RelationDrift
from pbg_tasks.errors import QualityGateError
from pbg_tasks.forecast.outcome import compare
from pbg_tasks.forecast.work import EVAL_PART
from pbg_tasks.report.training import training_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from pbg_tasks.config import GraphSpec
    from pbg_tasks.config.results import DriftResult, EvalResult, VerdictDocument
    from pbg_tasks.forecast.outcome import Pair
    from pbg_tasks.report.documents import (
        Data,
        ForecastPart,
        Lineage,
        ModelPart,
        RelationRow,
        RunDocument,
        State,
        Stored,
        TaskRow,
        Trained,
        VerdictPart,
    )
    from pbg_tasks.report.facts import RunFacts

TITLES = {"validate": "Data gate: snapshot", "partition": "Data gate: entities", "gate": "Quality gate"}
"""Tasks that judge, with the title of each verdict."""
_LISTED = 1000
"""Most relations that the result of ``validate`` lists."""
_DIFFERENCE = ("since", "awaited", "edges", "degrees", "columns", "volumes")


def run_document(run: RunFacts) -> RunDocument:
    """Return the document of a run's page.

    Parts of tasks that have not finished are None or empty; ``state`` is ``running``, ``refused``, ``failed``,
    ``finished`` (not to be released) or ``released``.
    """
    results, spec = run.results, run.spec
    partitioned, evaluated = results.partition, results.eval
    published = results.publish
    return {
        "kind": "run",
        "graph": spec.graph.graph,
        "channel": spec.graph.channel,
        "snapshot": spec.snapshot,
        "run": run.run_id,
        "url": run.url,
        "planned": run.planned,
        "begun": max((at for at in (run.begun, run.heard) if at is not None), default=None),
        "state": state(run),
        "reason": reason(run),
        "stopped": stopped_by(run),
        "failed_at": datetime.fromisoformat(run.failed["at"]).timestamp() if run.failed is not None else None,
        "log": None,
        "accepted": spec.accepted,
        "tasks": _tasks(run),
        "seconds": results.seconds,
        "release": published.release or None if published is not None else None,
        "published": published.published if published is not None else None,
        "unpublished": published.reason if published is not None else "",
        "warm_start": spec.previous is not None and spec.previous.warm_start,
        "edges": results.bucket.edges.document() if results.bucket is not None else None,
        "entities": partitioned.entities.document() if partitioned is not None else None,
        "entity_types": {
            name: found.document() for name, found in (partitioned.types.items() if partitioned is not None else ())
        },
        "relations": _relations(run),
        "relation_count": _relation_count(run),
        "training": training_document(run),
        "trained": _trained(run),
        "metrics": _metrics(evaluated),
        "held_out": evaluated.edges if evaluated is not None else None,
        "sampled_from": evaluated.held_out if evaluated is not None else None,
        "interval": evaluated.interval if evaluated is not None else None,
        "data": _data(run),
        "drift": _drift(results.drift),
        "verdicts": _verdicts(run),
        "forecast": _forecast(run),
        "lineage": _lineage(run),
        "model": _model(run),
        "map": run.map,
        "spec": spec.model_dump(mode="json"),
    }


def _model(run: RunFacts) -> ModelPart:
    """Return the settings of the model in the order of their weight."""
    graph, model = run.spec.graph, run.spec.graph.model
    start = "random" if model.init_path is None else "vectors of init_path"  # what is not there starts at random
    sampled = f", variance {model.gradient_variance:g}" if model.gradient == "sampled" else ""
    settings: dict[str, object] = {
        "Dimension": model.dimension,
        "Comparator": model.comparator,
        "Loss": model.loss_fn,
        "Learning rate": f"{model.lr:g}",
        "Rate of relations": f"{model.relation_lr:g}" if model.relation_lr is not None else "the same",
        "Epochs": run.spec.epochs,
        "Batch": f"{model.batch_size:,} edges",
        "Negatives of an edge": f"{model.num_batch_negs} of the batch, {model.num_uniform_negs} uniform",
        "Gradient": f"{model.gradient}{sampled}",
        "Precision": f"products {model.product_precision}, embeddings {model.embedding_precision}",
        "Start": "vectors of the release before" if run.spec.previous and run.spec.previous.warm_start else start,
        "Engine": graph.train.engine,
    }
    operators: dict[str, int | None] = dict(Counter(relation.operator for relation in model.relations))
    if model.dynamic_relations:  # one entry of the spec stands for all names of the column
        operators = dict.fromkeys(operators, _relation_count(run))
    return {"settings": {title: str(value) for title, value in settings.items()}, "operators": operators}


def _relation_count(run: RunFacts) -> int | None:
    """Return the number of relations; None before they are counted.

    Where there are more than ``validate`` lists, it is that of the model.
    """
    validated, partitioned = run.results.validate, run.results.partition
    if validated is None or len(validated.relations) < _LISTED:
        return None if validated is None else len(validated.relations)
    return None if partitioned is None else partitioned.relations


def state(run: RunFacts) -> State:
    """Return the state of a run, in a word."""
    if run.damaged:
        return "damaged"
    if any(not verdict.passed and not approved(run, task) for task, verdict in run.results.verdicts.items()):
        return "refused"
    published = run.results.publish
    if published is not None:
        return "released" if published.release else "finished"
    if _refused_at_last(run) or (run.refused and not any(approved(run, task) for task in TITLES)):
        return "refused"
    return "failed" if run.failed is not None else "running"


def _refused_at_last(run: RunFacts) -> bool:
    """Return whether the error with which the run ended is a refusal.

    It is of another task than the one that was approved, such as of a bucketing that finds nothing to hold out.
    """
    failed = run.failed
    return failed is not None and failed["kind"] == QualityGateError.kind and not approved(run, failed["task"])


def approved(run: RunFacts, task: str) -> bool:
    """Return whether a night was approved although a task refused it."""
    decision = run.decisions.get(task)
    return decision is not None and decision["approved"]


def stopped_by(run: RunFacts) -> str | None:
    """Return the task that refused the run or failed; None without one.

    A training that diverges refuses it without a verdict, so then it is the first task without a result. Limits of the
    forecast do so before any task has begun: then it is ``plan``.
    """
    if state(run) == "failed" and run.failed is not None:
        name = run.failed["task"]
        return next((task for task in run.tasks if name.partition("-")[0] == task), name)
    if state(run) != "refused":
        return None
    for task, verdict in run.results.verdicts.items():
        if not verdict.passed and not approved(run, task):
            return task
    if run.failed is None and [*run.results.finished] == [PlanResult.TASK]:
        return PlanResult.TASK
    return next((task for task in run.tasks if task not in run.results.finished), None)


def reason(run: RunFacts) -> str | None:
    """Return why a run was refused or failed.

    For a damaged run it is the reason why the run cannot be shown.
    """
    if run.damaged:
        return run.damaged
    if state(run) == "failed" and run.failed is not None:
        return run.failed["reason"]
    if state(run) != "refused":
        return None
    verdict = run.results.verdicts.get(stopped_by(run) or "")
    checks = verdict.checks if verdict is not None else ()
    last = run.failed["reason"] if run.failed is not None and _refused_at_last(run) else None
    return refusal_by(checks) or last or run.refused


def _tasks(run: RunFacts) -> list[TaskRow]:
    """List the tasks with their states.

    The first task that has not finished is under way or comes next, unless the run is over.
    """
    now, stopped = state(run), stopped_by(run)
    finished = run.results.finished
    listed: list[TaskRow] = []
    for task in run.tasks:
        result = finished.get(task)
        if task == stopped:
            ended: Literal["failed", "refused"] = "failed" if now == "failed" else "refused"
            listed.append({"name": task, "state": ended, "seconds": result.seconds if result is not None else None})
        elif result is not None:
            listed.append({"name": task, "state": "done", "seconds": result.seconds})
        else:
            first = now == "running" and all(each["state"] == "done" for each in listed)
            listed.append({"name": task, "state": "now" if first else "waiting", "seconds": None})
    return listed


def _relations(run: RunFacts) -> list[RelationRow]:
    """Join the facts about each relation; most edges first.

    They are edges, changes of edges, metrics and drift.
    """
    validated, evaluated = run.results.validate, run.results.eval
    drift, label = run.results.drift, _labels(run.spec.graph)
    counted = validated.relations if validated is not None else {}
    difference = validated.difference if validated is not None else None
    changed = difference.edges.relations if difference is not None and difference.edges is not None else {}
    rows = {label(name): edges for name, edges in counted.items()}
    changes = {label(name): each for name, each in changed.items()}
    ranked = evaluated.relations if evaluated is not None else {}
    moved = drift.relations if drift is not None else {}
    listed: list[RelationRow] = []
    for name in {**rows, **ranked}:
        figures = ranked[name].filtered if name in ranked else NOTHING_RANKED
        change = changes.get(name, RelationChanges())
        listed.append(
            {
                "name": name,
                "edges": rows.get(name, change.rows),
                "added": change.added,
                "removed": change.removed,
                "queries": figures.count if "count" in figures.model_fields_set else None,
                "mrr": figures.figure("mrr"),
                "hits1": figures.figure("hits1"),
                "hits10": figures.figure("hits10"),
                "cosine": moved.get(name, RelationDrift()).cosine,
            }
        )
    return sorted(listed, key=lambda each: (-(each["edges"] or 0), each["name"]))


def _labels(graph: GraphSpec) -> Callable[[str], str]:
    """Return a function from labels of ``validate`` to those of metrics.

    Where columns give the types of ends, each label of the former has them, of the latter only names that repeat.
    """
    model, columns = graph.model, graph.columns
    if columns.lhs_type is None:
        return str
    if model.relations_from_data:
        (only,) = model.relations
        return lambda name: name.removesuffix(f" ({only.lhs}, {only.rhs})")
    names = [each.name for each in model.relations]
    counted = names if columns.rel is not None else names[:1] * len(names)
    typed = [f"{name} ({each.lhs}, {each.rhs})" for name, each in zip(counted, model.relations, strict=True)]
    known = dict(zip(typed, relation_labels(model, names), strict=True))
    return lambda name: known.get(name, name)


def _trained(run: RunFacts) -> Trained | None:
    trained = run.results.train
    if trained is None:
        return None
    return {
        "engine": trained.engine,
        "device": trained.device,
        "workers": trained.workers,
        "edges_per_second": trained.edges_per_second,
        "edges_trained": trained.edges_trained,
        "edges_retrained": trained.edges_retrained,
        "loss": trained.loss,
        "resumed_from": trained.resumed_from,
        "ranks": trained.ranks,
        "early_stopping": trained.early_stopping.reason if trained.early_stopping is not None else None,
    }


def _metrics(evaluated: EvalResult | None) -> dict[str, dict[str, float | None]]:
    """Return the figures of ranks of each kind of ranking."""
    if evaluated is None:
        return {}
    kinds: dict[str, Figures | None] = {
        "filtered": evaluated.filtered,
        "raw": evaluated.raw,
        "popularity": evaluated.popularity,
        "random": evaluated.random,
    }
    found = {kind: figures.document() for kind, figures in kinds.items() if figures is not None}
    return {kind: dict.fromkeys(Figures.NAMES) | figures for kind, figures in found.items() if figures}


def _data(run: RunFacts) -> Data | None:
    validated, planned = run.results.validate, run.results.plan
    if validated is None:
        return None
    difference: Stored = dict.fromkeys(_DIFFERENCE)
    return {
        "edges": validated.edges,
        "duplicates": validated.duplicates,
        "self_loops": validated.self_loops,
        "difference": difference | (validated.difference.document() if validated.difference is not None else {}),
        "degrees": planned.degrees if planned is not None else {},
    }


def _drift(found: DriftResult | None) -> Stored | None:
    """Return the result of ``drift``; None on the first night.

    The first night has no earlier release to compare with.
    """
    return None if found is None or found.release is None else found.document()


def _verdicts(run: RunFacts) -> list[VerdictPart]:
    return [
        {
            "task": task,
            "title": TITLES[task],
            "passed": verdict.passed,
            "accepted": verdict.accepted,
            "decision": run.decisions.get(task),
            "approvable": task not in run.decisions and not beyond_approval(verdict),
            "checks": _checks(verdict),
        }
        for task, verdict in run.results.verdicts.items()
    ]


def _checks(verdict: VerdictDocument) -> list[Stored]:
    """Return a verdict's checks, with ``warned`` where a check lacks it."""
    return [{"warned": False, **check.document()} for check in verdict.checks]


def _forecast(run: RunFacts) -> ForecastPart | None:
    """Compare the forecast of each task with its actual figures."""
    plan = run.results.plan
    if plan is None or plan.forecast is None:
        return None
    found = compare(plan.forecast, run.results.finished)
    rows: list[dict[str, str | Pair]] = []
    tasks = forecast_tasks(run)
    for task, usage in tasks.items():
        pairs = found["tasks"].get(task, {})
        expected = {field: getattr(usage, field) for field in sorted(Expected.model_fields)}
        rows.append({"task": task} | {field: pairs.get(field) or _awaited(value) for field, value in expected.items()})
    return {
        "total_seconds": found["total_seconds"],
        "expected_seconds": sum(usage.seconds for usage in tasks.values()),
        "cost": found["cost"],
        "warnings": found["warnings"],
        "calibrated_on": found["calibrated_on"],
        "last_try": found["last_try"],
        "tasks": rows,
    }


def forecast_tasks(run: RunFacts) -> dict[str, Expected]:
    """Return the forecast of each task of a run, in order.

    Parts of ``eval`` are left out where its result has no time of them, as that of a whole evaluation.
    """
    plan, evaluated = run.results.plan, run.results.eval
    if plan is None or plan.forecast is None:
        return {}
    in_parts = evaluated is None or evaluated.parts is not None
    names = [each for task in run.tasks for each in ((EVAL_PART, task) if task == "eval" and in_parts else (task,))]
    return {name: plan.forecast.tasks[name] for name in names if name in plan.forecast.tasks}


def _awaited(expected: float) -> Pair:
    """Return the pair of a task that has not finished."""
    return {"forecast": expected, "actual": None, "ratio": None}


def _lineage(run: RunFacts) -> Lineage:
    previous, preserved = run.spec.previous, run.results.preserve
    return {
        "snapshot": [file.model_dump(mode="json") for file in run.spec.files],
        "previous": None if previous is None else previous.model_dump(mode="json"),
        "spec_sha256": run.spec_hash,
        "directory": preserved.directory if preserved is not None else None,
        "manifest_sha256": preserved.manifest_sha256 if preserved is not None else None,
        "files": [
            {"name": name, "size": record.size, "sha256": record.sha256} for name, record in sorted(run.files.items())
        ],
    }
