"""``show``: everything known of a run, as one JSON document, and as a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.config.results import PlanResult, models_of
from pbg_tasks.errors import InputError
from pbg_tasks.forecast import compare, outcome_table
from pbg_tasks.publish import Channel
from pbg_tasks.publish.descent import descent
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.approval import decisions
from pbg_tasks.tasks.context import CHAIN, Result, RunContext

if TYPE_CHECKING:
    from pathlib import Path

HEADLINE = ("mr", "mrr", "hits1", "hits10", "hits50", "auc")


def show(url: str) -> Result:
    """Collect what the finished tasks of a run found."""
    run = RunContext.open(url)
    results = {task: run.result(task) or {} for task in CHAIN}
    evaluated, published, trained = results["eval"], results["publish"], results["train"]
    return {
        "graph": run.spec.graph.graph,
        "snapshot": run.spec.snapshot,
        "run": run.url,
        "finished": [task for task in CHAIN if results[task]],
        "release": _release(published),
        "exports": _exports(run),
        "forecast": _forecast(results),
        "tasks": {task: {"seconds": result["seconds"]} for task, result in results.items() if result},
        "edges": results["bucket"].get("edges", {}),
        "entities": results["partition"].get("entities", {}),
        "relations": results["partition"].get("relations"),
        "epochs": trained.get("epochs"),
        "warm_start": trained.get("warm_start"),
        "loss": trained.get("loss"),
        "curve": trained.get("curve", []),
        "edges_per_second": trained.get("edges_per_second"),
        "metrics": {
            kind: evaluated[kind] for kind in ("raw", "filtered", "random", "popularity") if evaluated.get(kind)
        },
        "against": _against(evaluated),
        "drift": _drift(results["drift"]),
        "gate": {key: results["gate"][key] for key in ("passed", "checks") if key in results["gate"]},
        "decisions": decisions(run),
        "data": _data(results),
        "changes": _changes(run, results),
    }


def show_task(url: str, task: str) -> Result:
    """Return what one task of a run found.

    Raises:
        ConfigError: it has not finished.
    """
    return RunContext.open(url).require(task)


def _forecast(results: dict[str, Result]) -> Result | None:
    """Return the plan's forecast beside what the finished tasks took; None of a run that was planned without one."""
    found = models_of(results)
    plan = found.get("plan")
    return compare(plan.forecast, found) if isinstance(plan, PlanResult) and plan.forecast is not None else None


def _against(evaluated: Result) -> dict[str, float] | None:
    """Return the filtered MRR of the run and of the release before on the same edges; None where they share none."""
    against = evaluated.get("against") or {}
    found = {model: against.get(model, {}).get("filtered", {}).get("mrr") for model in ("candidate", "current")}
    return None if None in found.values() else found


def _drift(drift: Result) -> dict[str, float | None]:
    """Return the mean cosine and overlap of all types that have one, weighted by the entities in common."""
    types = drift.get("types", {}).values()
    found: dict[str, float | None] = {}
    for name in ("cosine", "overlap"):
        told = [(each[name]["mean"], each["common"]) for each in types if each[name]["mean"] is not None]
        entities = sum(common for _, common in told)
        found[name] = round(sum(value * common for value, common in told) / entities, 6) if entities else None
    return found


def _data(results: dict[str, Result]) -> Result:
    """Return what was found new in the snapshot, and what the data gate said of it."""
    verdicts = [results[task]["data_gate"] for task in ("validate", "partition") if results[task]]
    return {
        "difference": results["validate"].get("difference"),
        "passed": all(verdict["passed"] for verdict in verdicts) if verdicts else None,
        "accepted": next((reason for verdict in verdicts if (reason := verdict.get("accepted"))), None),
        "checks": [check for verdict in verdicts for check in verdict["checks"]],
    }


def _release(published: Result) -> dict[str, Any] | None:
    if "release" not in published:
        return None
    return {key: published[key] for key in ("channel", "release", "directory", "published")}


def _exports(run: RunContext) -> dict[str, str]:
    """Return where each export that is finished lies."""
    results = {export.name: run.result(export.task) for export in run.spec.graph.exports}
    return {name: result["destination"] for name, result in results.items() if result is not None}


def _changes(run: RunContext, results: dict[str, Result]) -> dict[str, Any]:
    """Compare a run with the release it continues, if that is still there."""
    previous = run.spec.previous
    if previous is None or not results["eval"]:
        return {}
    try:
        before = Channel(run.store, run.spec.graph.channel).release(previous.seq)
    except InputError:
        return {}
    edges, now = before.data.get("edges"), _dig(results, "bucket", "edges", "total")
    entities = results["partition"].get("entities", {})
    return {
        "since": previous.snapshot,
        "edges": None if edges is None or now is None else now - edges,  # an adopted checkpoint has no number
        "new_entities": entities.get("new"),
        "gone_entities": entities.get("gone"),
        "filtered_mrr": _difference(results["eval"], before.metrics),
    }


def _difference(now: Result, before: Result) -> float | None:
    mrr, then = (_dig(metrics, "filtered", "mrr") for metrics in (now, before))
    return None if mrr is None or then is None else round(float(mrr) - float(then), 6)


def outcome(summary: Result) -> str:
    """Draw a run's forecast beside what it took; empty of a run that was planned without one."""
    return "" if summary["forecast"] is None else "\n".join(outcome_table(summary["forecast"]))


def table(summaries: list[Result]) -> str:
    """Draw runs side by side, one row a figure."""
    rows: list[tuple[str, list[str]]] = [("snapshot", [summary["snapshot"] for summary in summaries])]
    for task in CHAIN:
        seconds = [summary["tasks"].get(task, {}).get("seconds") for summary in summaries]
        rows.append((f"{task}, s", [_cell(value, "{:.1f}") for value in seconds]))
    rows += [(label, [_cell(_dig(summary, *path), form) for summary in summaries]) for label, path, form in _FIGURES]
    rows.append(("release", [_release_cell(summary) for summary in summaries]))
    rows.append(("data gate", [_data_cell(summary["data"]) for summary in summaries]))
    rows.append(("decided by hand", [_decisions_cell(summary["decisions"]) for summary in summaries]))
    rows.append(("since the run before", [_changes_cell(summary["changes"]) for summary in summaries]))
    return _draw(rows)


_FIGURES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("edges, training", ("edges", "train"), "{:,}"),
    ("edges, held out for test", ("edges", "test"), "{:,}"),
    ("edges added", ("data", "difference", "edges", "added"), "{:,}"),
    ("edges removed", ("data", "difference", "edges", "removed"), "{:,}"),
    ("entities", ("entities", "total"), "{:,}"),
    ("entities new", ("entities", "new"), "{:,}"),
    ("entities kept", ("entities", "kept"), "{:,}"),
    ("entities gone", ("entities", "gone"), "{:,}"),
    ("entities returned", ("entities", "returned"), "{:,}"),
    ("entities absent before and now", ("entities", "absent"), "{:,}"),
    ("relations", ("relations",), "{:,}"),
    ("warm start", ("warm_start",), "{}"),
    ("epochs", ("epochs",), "{}"),
    ("edges per second", ("edges_per_second",), "{:,}"),
    ("loss", ("loss",), "{:.4f}"),
    ("MRR raw", ("metrics", "raw", "mrr"), "{:.4f}"),
    ("MRR filtered", ("metrics", "filtered", "mrr"), "{:.4f}"),
    ("Hits@1 filtered", ("metrics", "filtered", "hits1"), "{:.4f}"),
    ("Hits@10 filtered", ("metrics", "filtered", "hits10"), "{:.4f}"),
    ("MRR of a random scorer", ("metrics", "random", "mrr"), "{:.5f}"),
    ("MRR of popularity", ("metrics", "popularity", "mrr"), "{:.5f}"),
    ("MRR on edges both know", ("against", "candidate"), "{:.4f}"),
    ("MRR of the release before there", ("against", "current"), "{:.4f}"),
    ("cosine to the release before", ("drift", "cosine"), "{:.4f}"),
    ("neighbours kept", ("drift", "overlap"), "{:.4f}"),
    ("gate passed", ("gate", "passed"), "{}"),
)


def _dig(summary: Result, *path: str) -> Any:  # noqa: ANN401 - any JSON value
    value: Any = summary
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _cell(value: Any, form: str) -> str:  # noqa: ANN401 - any JSON value
    return (
        "-" if value is None else form.format({True: "yes", False: "no"}[value] if isinstance(value, bool) else value)
    )


def _release_cell(summary: Result) -> str:
    release = summary["release"]
    if release is None:
        return "-"
    return f"{release['channel']} {release['release']}{'' if release['published'] else ' (not current)'}"


def _data_cell(data: Result) -> str:
    if data["passed"] is None:
        return "-"
    warnings = sum(check.get("warned", False) for check in data["checks"])
    said = "accepted by hand" if data["accepted"] else "passed" if data["passed"] else "blocked"
    return f"{said}, {warnings} warning{'' if warnings == 1 else 's'}" if warnings else said


def _decisions_cell(decisions: list[Result]) -> str:
    words = {True: "approved", False: "rejected"}
    return ", ".join(f"{each['task']} {words[each['approved']]} by {each['by']}" for each in decisions) or "-"


def _changes_cell(changes: dict[str, Any]) -> str:
    if not changes:
        return "-"
    edges, mrr = _cell(changes["edges"], "{:+,}"), changes["filtered_mrr"]
    moved = f", MRR {mrr:+.4f}" if mrr is not None else ""
    new, gone = (_cell(changes[key], "{:,}") for key in ("new_entities", "gone_entities"))
    return f"{edges} edges, +{new} -{gone} entities{moved}"


def _draw(rows: list[tuple[str, list[str]]]) -> str:
    first = max(len(label) for label, _ in rows)
    widths = [max(len(cells[column]) for _, cells in rows) for column in range(len(rows[0][1]))]
    lines = [
        "  ".join([label.ljust(first), *(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))])
        for label, cells in rows
    ]
    rule = "-" * len(lines[0])
    return "\n".join([lines[0], rule, *lines[1:]])


def history(spec: Path) -> list[Result]:
    """List the releases of a graph's channel, oldest first, with a mark at the one it points to.

    ``continues`` is the release that a release was trained from, None where it began anew or its run is gone;
    ``descends_from`` the nearest release on that way that counts no longer, with the reason in ``because``.
    """
    graph = load_graph_spec(spec)
    channel = Channel(open_store(graph.store), graph.channel)
    pointer, releases = channel.current(), list(channel.releases())
    current, ways = pointer.release, descent(channel, releases, pointer)
    return [
        {
            "release": release.seq,
            "snapshot": release.snapshot,
            "run": release.run,
            "filtered_mrr": _dig(release.metrics, "filtered", "mrr"),
            "current": current is not None and current.seq == release.seq,
            **ways[release.seq],
        }
        for release in releases
    ]


def history_table(listed: list[Result]) -> str:
    """Draw the releases of a channel, one row a release."""
    rows = [("release", ["snapshot", "run", "MRR filtered", "current", "continues"])]
    for release in listed:
        cells = [release["snapshot"], release["run"], _cell(release["filtered_mrr"], "{:.4f}")]
        way = _cell(release["continues"], "{}")
        if release["descends_from"] is not None:
            way += f", from {release['descends_from']}: {release['because']}"
        rows.append((str(release["release"]), [*cells, _cell(release["current"], "{}"), way]))
    return _draw(rows)
