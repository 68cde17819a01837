"""``show``: all results of a run, as JSON or a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.config.night_results import NightResults
from pbg_tasks.config.results import SHAPES, ExportResult, Metrics, ReleaseData
from pbg_tasks.errors import InputError
from pbg_tasks.forecast import compare, outcome_table
from pbg_tasks.publish import Channel
from pbg_tasks.publish.descent import descent
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.approval import decisions
from pbg_tasks.tasks.context import CHAIN, RunContext

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pbg_tasks.config.results import (
        BothWays,
        DriftResult,
        EvalResult,
        Figures,
        GateResult,
        PublishResult,
        Result,
        TypeDrift,
    )
    from pbg_tasks.forecast import Outcome
    from pbg_tasks.report.documents import Decided, Stored
    from pbg_tasks.tasks.view.summary import (
        AgainstSummary,
        Changes,
        DataSummary,
        DriftSummary,
        ReleaseRow,
        ReleaseSummary,
        Summary,
    )


def show(url: str) -> Summary:
    """Collect what the finished tasks of a run found."""
    run = RunContext.open(url)
    results = NightResults.of(run.find(shape) for shape in SHAPES.values())
    bucketed, partitioned, trained = results.bucket, results.partition, results.train
    return {
        "graph": run.spec.graph.graph,
        "snapshot": run.spec.snapshot,
        "run": run.url,
        "finished": list(results.finished),
        "release": _release(results.publish),
        "exports": _exports(run),
        "forecast": _forecast(results),
        "tasks": {task: {"seconds": result.seconds} for task, result in results.finished.items()},
        "edges": bucketed.edges.document() if bucketed is not None else {},
        "entities": partitioned.entities.document() if partitioned is not None else {},
        "relations": partitioned.relations if partitioned is not None else None,
        "epochs": trained.epochs if trained is not None else None,
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


def _release(published: PublishResult | None) -> ReleaseSummary | None:
    if published is None or not published.release:
        return None
    return {
        "channel": published.channel,
        "release": published.release,
        "directory": published.directory,
        "published": published.published,
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
    edges = ReleaseData.model_validate(before.data).edges
    now = results.bucket.edges.total if results.bucket is not None else None
    entities = results.partition.entities if results.partition is not None else None
    return {
        "since": previous.snapshot,
        "edges": None if edges is None or now is None else now - edges,  # an adopted checkpoint has no number
        "new_entities": entities.new if entities is not None else None,
        "gone_entities": entities.gone if entities is not None else None,
        "filtered_mrr": _difference(results.eval, Metrics.model_validate(before.metrics)),
    }


def _difference(now: EvalResult, before: Metrics) -> float | None:
    mrr, then = _filtered_mrr(now), _filtered_mrr(before)
    return None if mrr is None or then is None else round(float(mrr) - float(then), 6)


def outcome(summary: Summary) -> str:
    """Draw a run's forecast beside its results.

    Empty for a run that was planned without a forecast.
    """
    return "" if summary["forecast"] is None else "\n".join(outcome_table(summary["forecast"]))


def table(summaries: Sequence[Summary]) -> str:
    """Draw runs side by side, one row a figure."""
    rows: list[tuple[str, list[str]]] = [("snapshot", [summary["snapshot"] for summary in summaries])]
    for task in CHAIN:
        seconds = [_dig(summary, "tasks", task, "seconds") for summary in summaries]
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


def _dig(summary: Mapping[str, object], *path: str) -> Any:  # noqa: ANN401 - any JSON value
    value: Any = summary
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _cell(value: Any, form: str) -> str:  # noqa: ANN401 - any JSON value
    return (
        "-" if value is None else form.format({True: "yes", False: "no"}[value] if isinstance(value, bool) else value)
    )


def _release_cell(summary: Summary) -> str:
    release = summary["release"]
    if release is None:
        return "-"
    return f"{release['channel']} {release['release']}{'' if release['published'] else ' (not current)'}"


def _data_cell(data: DataSummary) -> str:
    if data["passed"] is None:
        return "-"
    warnings = sum(bool(check.get("warned")) for check in data["checks"])
    said = "accepted by hand" if data["accepted"] else "passed" if data["passed"] else "blocked"
    return f"{said}, {warnings} warning{'' if warnings == 1 else 's'}" if warnings else said


def _decisions_cell(decisions: Sequence[Decided]) -> str:
    words = {True: "approved", False: "rejected"}
    return ", ".join(f"{each['task']} {words[each['approved']]} by {each['by']}" for each in decisions) or "-"


def _changes_cell(changes: Changes) -> str:
    if not changes:
        return "-"
    edges, mrr = _cell(changes["edges"], "{:+,}"), changes["filtered_mrr"]
    moved = f", MRR {mrr:+.4f}" if mrr is not None else ""
    new, gone = _cell(changes["new_entities"], "{:,}"), _cell(changes["gone_entities"], "{:,}")
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


def history(spec: Path) -> list[ReleaseRow]:
    """List the releases of a graph's channel, oldest first.

    The one that the channel points to has a mark. ``continues`` is the release that a release was trained from, None
    where it began anew or its run is gone; ``descends_from`` the nearest release on that way that counts no longer,
    with the reason in ``because``.
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
            "filtered_mrr": _filtered_mrr(Metrics.model_validate(release.metrics)),
            "current": current is not None and current.seq == release.seq,
            **ways[release.seq],
        }
        for release in releases
    ]


def history_table(listed: Sequence[ReleaseRow]) -> str:
    """Draw the releases of a channel, one row a release."""
    rows = [("release", ["snapshot", "run", "MRR filtered", "current", "continues"])]
    for release in listed:
        cells = [release["snapshot"], release["run"], _cell(release["filtered_mrr"], "{:.4f}")]
        way = _cell(release["continues"], "{}")
        if release["descends_from"] is not None:
            way += f", from {release['descends_from']}: {release['because']}"
        rows.append((str(release["release"]), [*cells, _cell(release["current"], "{}"), way]))
    return _draw(rows)
