"""Document of a search, with the patch of its best candidate."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, TypedDict

from pbg_tasks.progress import aligned, fraction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic import JsonValue

    from pbg_tasks.config.tune_results import Outcome, Rung, Search, TriedCandidate
    from pbg_tasks.report.documents import TuneDocument, TuneRow

_PLAIN = re.compile(r"[A-Za-z_][\w.\-]*")  # a YAML key without quotes


class TuneFacts(TypedDict):
    """Documents of a search, as they were read from the store.

    ``latest`` has the results in the first rung that is not decided, by candidate.
    """

    run: str
    store: str
    search_id: str
    search: Search
    rungs: Sequence[Rung]
    latest: Mapping[str, Outcome]


def tune_document(facts: TuneFacts) -> TuneDocument:
    """Return the document of a search's page.

    Each candidate stands with the best of its results, which may be that of an earlier rung: one that trained on too
    long was better before. The best candidate is the one with the best result of all.
    """
    search, rungs = facts["search"], facts["rungs"]
    outcomes = _outcomes(facts)
    finished = len(rungs) == len(search.epochs)
    rows = [
        _row(each, outcomes[each.trial], search, going_on=_goes_on(each.trial, facts)) for each in search.candidates
    ]
    rows.sort(key=lambda row: (row["metric"] is None, -(row["metric"] or 0.0), row["state"] == "failed"))
    for rank, row in enumerate(rows, start=1):
        row["rank"] = rank if row["metric"] is not None or row["state"] == "failed" else None
    best, alike = rows[0] if finished else None, 0
    patch = None
    if best is not None:
        best["state"] = "best"
        alike = sum((row["high"] or 0.0) >= (best["low"] or 0.0) for row in rows[1:] if row["metric"] is not None)
        patch = patch_text(best, search)
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
        "best": None if best is None else best["trial"],
        "alike": alike,
        "patch": patch,
    }


def _outcomes(facts: TuneFacts) -> dict[str, list[Outcome]]:
    """Return the results of each candidate, rung by rung.

    Of a decided rung they are those by which it was decided. A failure stands in each later rung, too, and took
    its time once.
    """
    found: dict[str, list[Outcome]] = {each.trial: [] for each in facts["search"].candidates}
    for outcome in (*(each for rung in facts["rungs"] for each in rung.ranking), *facts["latest"].values()):
        if outcome not in found[outcome.trial]:
            found[outcome.trial].append(outcome)
    return found


def _goes_on(trial: str, facts: TuneFacts) -> bool:
    """Return whether a candidate is in a rung that is not decided."""
    rungs = facts["rungs"]
    return len(rungs) < len(facts["search"].epochs) and (not rungs or trial in rungs[-1].kept)


def _row(candidate: TriedCandidate, outcomes: Sequence[Outcome], search: Search, *, going_on: bool) -> TuneRow:
    ranked = [each for each in outcomes if each.status == "finished"]
    best = max(ranked, key=lambda each: (each.figures.get(search.metric, 0.0), each.epochs or 0), default=None)
    failed = outcomes[-1] if outcomes and outcomes[-1].status != "finished" else None
    state = "failed" if failed is not None else "running" if going_on else "lost"
    return {
        "rank": None,
        "trial": candidate.trial,
        "changes": {key: shown(value) for key, value in candidate.changes.items()},
        "values": dict(candidate.changes),
        "mrr": best.figures.get("mrr") if best else None,
        "low": best.low if best else None,
        "high": best.high if best else None,
        "metric": best.figures.get(search.metric) if best else None,
        "epochs": best.epochs if best else None,
        "trained": ranked[-1].epochs if ranked else None,
        "continued": ranked[-1].continued if ranked else 0,
        "seconds": round(sum(each.seconds for each in outcomes), 3) if outcomes else None,
        "state": state,
        "reason": failed.reason if failed is not None else None,
    }


def shown(value: JsonValue) -> str:
    """Return a value as a spec has it."""
    return value if isinstance(value, str) else json.dumps(value)


def patch_text(best: TuneRow, search: Search) -> str:
    """Return the best candidate's values as YAML, by key path.

    The epochs are among them where another number than the spec's was the best.
    """
    low, high = best["low"], best["high"]
    interval = f" ({fraction(low)} to {fraction(high)})" if low is not None and high is not None else ""
    head = f"# Best of {len(search.candidates)} candidates on snapshot {search.snapshot}: "
    head += f"valid MRR {fraction(best['mrr'] or 0.0)}{interval} after {best['epochs']} epochs"
    values = best["values"]
    if search.epochs[-1] is not None and best["epochs"] != search.epochs[-1]:
        values = values | {"model.num_epochs": best["epochs"]}
    lines = (
        f"{key if _PLAIN.fullmatch(key) else json.dumps(key)}: {json.dumps(value)}" for key, value in values.items()
    )
    return "\n".join([head, *lines, ""])


def table(document: TuneDocument) -> str:
    """Draw the table of a search for a terminal."""
    keys, metric = document["keys"], document["metric"]
    head = [
        "rank",
        *keys,
        "MRR",
        "95 %",
        *([metric] if metric != "mrr" else []),
        "epochs",
        "trained",
        "seconds",
        "state",
    ]
    return "\n".join(aligned([head, *(_cells(row, keys, metric) for row in document["rows"])]))


def _cells(row: TuneRow, keys: Sequence[str], metric: str) -> list[str]:
    return [
        _cell(row["rank"], str),
        *(row["changes"].get(key, "-") for key in keys),
        _cell(row["mrr"], fraction),
        "-" if row["low"] is None or row["high"] is None else f"{fraction(row['low'])} to {fraction(row['high'])}",
        *([_cell(row["metric"], fraction)] if metric != "mrr" else []),
        _cell(row["epochs"], str),
        _cell(row["trained"], str),
        _cell(row["seconds"], "{:.1f}".format),
        row["state"] + (f": {row['reason']}" if row["reason"] else ""),
    ]


def _cell(value: float | None, form: Callable[[Any], str]) -> str:
    return "-" if value is None else form(value)
