"""Document of a search, with the patch of its best candidate."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import JsonValue

    from pbg_tasks.config.tune_results import Outcome, Rung, Search
    from pbg_tasks.report.documents import TuneDocument, TuneRow

_PLAIN = re.compile(r"[A-Za-z_][\w.\-]*")  # a YAML key without quotes


class TuneFacts(TypedDict):
    """Documents of a search, as they were read from the store.

    ``outcomes`` has by candidate the results of all rungs that it has finished; the last one may be a failure.
    """

    run: str
    store: str
    search_id: str
    search: Search
    rungs: Sequence[Rung]
    outcomes: Mapping[str, Sequence[Outcome]]


def tune_document(facts: TuneFacts) -> TuneDocument:
    """Return the document of a search's page.

    Candidates that came further stand first; within a rung they are in the order of its decision.
    """
    search, rungs = facts["search"], facts["rungs"]
    finished = len(rungs) == len(search.epochs)
    reached = {trial: number for number, rung in enumerate(rungs) for trial in (each.trial for each in rung.ranking)}
    kept = set(rungs[-1].kept) if rungs and not finished else set()
    best = rungs[-1].ranking[0] if finished else None
    order = [each.trial for rung in reversed(rungs) for each in rung.ranking]
    order += [each.trial for each in search.candidates]
    changes = {each.trial: each.changes for each in search.candidates}
    rows: list[TuneRow] = []
    for trial in dict.fromkeys(order):
        outcomes = facts["outcomes"].get(trial, ())
        decided = next((each for rung in reversed(rungs) for each in rung.ranking if each.trial == trial), None)
        last = outcomes[-1] if outcomes else decided
        state = _state(trial, last, best, going_on=trial in kept or (not rungs))
        rows.append(
            {
                "rank": len(rows) + 1 if trial in reached else None,
                "trial": trial,
                "changes": {key: shown(value) for key, value in changes[trial].items()},
                "mrr": last.figures.get("mrr") if last else None,
                "low": last.low if last else None,
                "high": last.high if last else None,
                "metric": last.figures.get(search.metric) if last else None,
                "epochs": last.epochs if last else None,
                "rung": reached.get(trial),
                "seconds": round(sum(each.seconds for each in outcomes), 3) if outcomes else None,
                "continued": last.continued if last else 0,
                "state": state,
                "reason": last.reason if last else None,
            }
        )
    alike = 0
    if best is not None and best.low is not None:
        alike = sum(row["high"] is not None and row["high"] >= best.low for row in rows if row["trial"] != best.trial)
    return {
        "kind": "tune",
        "graph": search.graph,
        "snapshot": search.snapshot,
        "store": facts["store"],
        "run": facts["run"],
        "search": facts["search_id"],
        "metric": search.metric,
        "keys": list(search.candidates[0].changes),
        "epochs": list(search.epochs),
        "decided": len(rungs),
        "rows": rows,
        "best": None if best is None else best.trial,
        "alike": alike,
        "patch": None if best is None else patch_text(changes[best.trial], best, search),
    }


def _state(trial: str, last: Outcome | None, best: Outcome | None, *, going_on: bool) -> str:
    if last is not None and last.status != "finished":
        return "failed"
    if best is not None and trial == best.trial:
        return "best"
    return "running" if going_on else "lost"


def shown(value: JsonValue) -> str:
    """Return a value as a spec has it."""
    return value if isinstance(value, str) else json.dumps(value)


def patch_text(changes: Mapping[str, JsonValue], best: Outcome, search: Search) -> str:
    """Return the best candidate's values as YAML, by key path."""
    mrr = best.figures.get("mrr", 0.0)
    interval = f" ({best.low:.4f} to {best.high:.4f})" if best.low is not None and best.high is not None else ""
    head = f"# Best of {len(search.candidates)} candidates on snapshot {search.snapshot}: valid MRR {mrr:.4f}{interval}"
    lines = (
        f"{key if _PLAIN.fullmatch(key) else json.dumps(key)}: {json.dumps(value)}" for key, value in changes.items()
    )
    return "\n".join([head, *lines, ""])


def table(document: TuneDocument) -> str:
    """Draw the table of a search for a terminal."""
    keys, metric = document["keys"], document["metric"]
    head = ["rank", *keys, "MRR", "95 %", *([metric] if metric != "mrr" else []), "epochs", "seconds", "state"]
    rows = [
        [
            _cell(row["rank"], "{}"),
            *(row["changes"].get(key, "-") for key in keys),
            _cell(row["mrr"], "{:.4f}"),
            "-" if row["low"] is None or row["high"] is None else f"{row['low']:.4f} to {row['high']:.4f}",
            *([_cell(row["metric"], "{:.4f}")] if metric != "mrr" else []),
            _cell(row["epochs"], "{}"),
            _cell(row["seconds"], "{:.1f}"),
            row["state"] + (f": {row['reason']}" if row["reason"] else ""),
        ]
        for row in document["rows"]
    ]
    widths = [max(len(line[column]) for line in (head, *rows)) for column in range(len(head))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in (head, *rows))


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
