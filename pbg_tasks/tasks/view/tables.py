"""Tables of runs and releases, for people."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from pbg_tasks.errors import BY_KIND, PbgError, QualityGateError, printable
from pbg_tasks.forecast.outcome import outcome_table
from pbg_tasks.forecast.work import EVAL_PART
from pbg_tasks.progress import fraction
from pbg_tasks.report.comparison import dig
from pbg_tasks.report.numbers import moment
from pbg_tasks.tasks.context import CHAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pbg_tasks.report.documents import Decided, Failed
    from pbg_tasks.tasks.view.summary import Changes, DataSummary, Overview, ReleaseRow, Summary

    Form: TypeAlias = Callable[[Any], str]

Row = tuple[str, list[str]]
_NOTHING = "-"
_REFUSING = {"plan": "limits of its forecast", "gate": "quality gate"}


def outcome(summary: Summary) -> str:
    """Draw a run's forecast beside its results.

    Empty for a run that was planned without a forecast.
    """
    return "" if summary["forecast"] is None else "\n".join(outcome_table(summary["forecast"]))


def table(summaries: Sequence[Summary]) -> str:
    """Draw runs side by side, one row a figure, in groups.

    Rows of which no run has a figure are left out. The verdicts come first, the URLs last.
    """
    rows: list[Row] = [("snapshot", [summary["snapshot"] for summary in summaries])]
    rows.append(("verdict", [verdict(summary) for summary in summaries]))
    warned = [_warnings(summary) for summary in summaries]
    rows += [("warnings", warned)] if set(warned) != {_NOTHING} else []
    for heading, group in _groups(summaries):
        shown = [(f"  {label}", cells) for label, cells in group if set(cells) != {_NOTHING}]
        rows += [(heading, [""] * len(summaries)), *shown] if shown else []
    found = list(dict.fromkeys(line for summary in summaries for _, line in _findings(summary)))  # two tasks may agree
    broken = [_failure(summary["snapshot"], failed) for summary in summaries if (failed := summary["failed"])]
    advice = [printable(text) for summary in summaries if (text := summary["advice"])]
    urls = [f"run of {summary['snapshot']}: {summary['run']}" for summary in summaries]
    return "\n".join([draw(rows), "", *broken, *found, *advice, *urls])


def _warnings(summary: Summary) -> str:
    count = sum(result == "warned" for result, _ in _findings(summary))
    return f"{count}, below" if count else _NOTHING


def _findings(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield each check that blocked or warned, as its result and line."""
    for gate, key in (("data gate", "data"), ("quality gate", "gate")):
        for check in dig(summary, key, "checks") or []:
            if not check["passed"] or check.get("warned"):
                result = "warned" if check["passed"] else "not passed"
                line = f"{gate} of {summary['snapshot']}, {result}: {check['sentence']} ({check['name']})"
                yield result, printable(line)


def _failure(snapshot: str, failed: Failed) -> str:
    """Return the line about a task that ended with an error."""
    at = moment(datetime.fromisoformat(failed["at"]).timestamp())
    return printable(f"{failed['task']} of {snapshot} failed, {at} UTC: {failed['kind']}: {failed['reason']}")


def verdict(summary: Summary) -> str:
    """Return how a run ended, or its next task, in words."""
    release = summary["release"]
    if release is not None:
        text = f"release {release['release']} of {release['channel']}"
        if release["rolled_back"]:
            return f"{text}, rolled back"
        return text if release["published"] else f"{text}, not current"
    if summary["refused"] is not None:
        return f"refused by the {_REFUSING.get(summary['refused'], 'data gate')}"
    if "publish" in summary["finished"]:
        return "finished, not published"
    if (failed := summary["failed"]) is not None:
        is_refusal = issubclass(BY_KIND.get(failed["kind"], PbgError), QualityGateError)
        return f"{'refused' if is_refusal else 'failed'} in {failed['task']}"
    left = next((task for task in CHAIN if task not in summary["finished"]), None)
    return "finished" if left is None else f"unfinished, next is {left}"


def _groups(summaries: Sequence[Summary]) -> Iterator[tuple[str, list[Row]]]:
    for heading, figures in _FIGURES.items():
        rows = [_row(summaries, *figure) for figure in figures]
        if heading == "Decisions":
            rows.append(("data gate", [_data_cell(summary["data"]) for summary in summaries]))
            rows.append(("decided by hand", [_decisions_cell(summary["decisions"]) for summary in summaries]))
            rows.append(("since the release before", [_changes_cell(summary["changes"]) for summary in summaries]))
        yield heading, rows
    place = CHAIN.index("eval")
    timed = (*CHAIN[:place], EVAL_PART, *CHAIN[place:])
    yield "Seconds", [_row(summaries, task, ("tasks", task, "seconds"), "{:.1f}".format) for task in timed]


def _row(summaries: Sequence[Summary], label: str, path: Sequence[str], form: Form) -> Row:
    """Return the row of the figure at ``path`` of each summary."""
    return label, [_cell(dig(summary, *path), form) for summary in summaries]


_FIGURES: dict[str, tuple[tuple[str, tuple[str, ...], Form], ...]] = {
    "Graph": (
        ("edges, training", ("edges", "train"), "{:,}".format),
        ("edges, held out for test", ("edges", "test"), "{:,}".format),
        ("edges added", ("data", "difference", "edges", "added"), "{:,}".format),
        ("edges removed", ("data", "difference", "edges", "removed"), "{:,}".format),
        ("entities", ("entities", "total"), "{:,}".format),
        ("entities new", ("entities", "new"), "{:,}".format),
        ("entities kept", ("entities", "kept"), "{:,}".format),
        ("entities gone", ("entities", "gone"), "{:,}".format),
        ("entities returned", ("entities", "returned"), "{:,}".format),
        ("entities absent before and now", ("entities", "absent"), "{:,}".format),
        ("relations", ("relations",), "{:,}".format),
    ),
    "Training": (
        ("warm start", ("warm_start",), str),
        ("epochs", ("epochs",), str),
        ("epoch that is released", ("best_epoch",), str),
        ("edges of a delta epoch", ("delta_edges",), "{:,}".format),
        ("edges per second", ("edges_per_second",), "{:,}".format),
        ("loss of the last epoch", ("loss",), "{:.4f}".format),
    ),
    "Quality": (
        ("MRR raw", ("metrics", "raw", "mrr"), fraction),
        ("MRR filtered", ("metrics", "filtered", "mrr"), fraction),
        ("Hits@1 filtered", ("metrics", "filtered", "hits1"), fraction),
        ("Hits@10 filtered", ("metrics", "filtered", "hits10"), fraction),
        ("MRR of a random scorer", ("metrics", "random", "mrr"), fraction),
        ("MRR of popularity", ("metrics", "popularity", "mrr"), fraction),
        ("MRR on edges both know", ("against", "candidate"), fraction),
        ("MRR of the release before there", ("against", "current"), fraction),
        ("cosine to the release before", ("drift", "cosine"), fraction),
        ("neighbours kept", ("drift", "overlap"), fraction),
    ),
    "Decisions": (("quality gate passed", ("gate", "passed"), str),),
}


def _cell(value: Any, form: Form) -> str:  # noqa: ANN401 - any JSON value
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else form(value)


def _data_cell(data: DataSummary) -> str:
    if data["passed"] is None:
        return "-"
    warnings = sum(bool(check.get("warned")) for check in data["checks"])
    text = "accepted by hand" if data["accepted"] else "passed" if data["passed"] else "blocked"
    return f"{text}, {warnings} warning{'' if warnings == 1 else 's'}" if warnings else text


def _decisions_cell(decisions: Sequence[Decided]) -> str:
    words = {True: "approved", False: "rejected"}
    return ", ".join(f"{each['task']} {words[each['approved']]} by {each['by']}" for each in decisions) or "-"


def _changes_cell(changes: Changes) -> str:
    if not changes:
        return "-"
    edges, mrr = _cell(changes["edges"], "{:+,}".format), changes["filtered_mrr"]
    moved = f", MRR {mrr:+.3g}" if mrr is not None else ""
    new, gone = _cell(changes["new_entities"], "{:,}".format), _cell(changes["gone_entities"], "{:,}".format)
    return f"{edges} edges, +{new} -{gone} entities{moved}"


def draw(rows: list[Row]) -> str:
    """Draw rows of cells; the first row is the head.

    Line breaks and control characters are escaped, so that no name looks like a row.
    """
    shown = [[printable(label), *map(printable, cells)] for label, cells in rows]
    first, *widths = (max(map(len, column)) for column in zip(*shown, strict=True))
    lines = ["  ".join([label.ljust(first), *map(str.rjust, cells, widths)]) for label, *cells in shown]
    rule = "-" * len(lines[0])
    return "\n".join([lines[0], rule, *lines[1:]])


def history_table(listed: Sequence[ReleaseRow]) -> str:
    """Draw the releases of a channel, one row a release."""
    promoted = any(release["promoted_from"] for release in listed)
    rows = [("release", ["snapshot", "run", "MRR filtered", "current", "continues", *["promoted from"] * promoted])]
    for release in listed:
        cells = [release["snapshot"], release["run"], _cell(release["filtered_mrr"], fraction)]
        way = _cell(release["continues"], str)
        if release["descends_from"] is not None:
            if release["descends_from"] != release["continues"]:
                way += f", from {release['descends_from']}"
            way += f": {release['because']}"
        origin = [release["promoted_from"] or _NOTHING] if promoted else []
        served = _cell(release["current"], str) + (f", {release['void']}" if release["void"] is not None else "")
        rows.append((str(release["release"]), [*cells, served, way, *origin]))
    return draw(rows)


def overview_table(found: Overview) -> str:
    """Draw a graph's releases, and the newest one's run below them."""
    parts = []
    for name, rows in found["channels"].items():
        listed = history_table(rows) if rows else "no release yet"
        parts.append(f"channel {name} of {found['store']}\n\n{listed}")
        if left := found["without_release"].get(name):
            days = [printable(f"  {snapshot}: {reason}") for snapshot, reason in left.items()]
            more = f"`pbg show {found['store']}/runs/RUN` has all of it; `pbg approve` lets pass what a gate refused"
            named = [more] if any("(run " in reason for reason in left.values()) else []  # a skip by hand names none
            parts.append("\n".join(["days without a release, which nights go on without:", *days, *named]))
        if broken := found["failed"].get(name):
            lines = [
                f"  {_failure(night['snapshot'], night['failed'])}"
                + (f"\n    {found['store']}/runs/{night['run']}" if night["run"] is not None else "")
                for night in broken
            ]
            advice = (
                "nights that broke; `pbg run SPEC DAY` with its options tries one again, `pbg skip SPEC DAY` goes on "
                "without it:"
            )
            parts.append("\n".join([advice, *lines]))
    if found["newest"] is not None:
        parts.append(table([found["newest"]]))
    return "\n\n".join(parts)
