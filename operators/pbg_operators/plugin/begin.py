"""Document of the page from which a night is begun."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal, TypedDict

from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.report.comparison import duration
from pbg_tasks.report.numbers import money

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.report.documents import HistoryDocument, Night, RunDocument

SHOWN = 60
"""Newest snapshots that the page lists."""


class BeginRow(TypedDict):
    """Snapshot that is there, with the last night that it had."""

    snapshot: str
    night: Night | None


class BeginDocument(TypedDict):
    """Page from which a night is begun.

    ``problem`` is why snapshots cannot be listed; ``api`` the address of Airflow's interface that begins a run;
    ``warning`` why a night would not begin at once.
    """

    kind: Literal["begin"]
    graph: str
    channel: str
    location: str
    problem: str | None
    warning: str | None
    rows: list[BeginRow]
    left_out: int
    forecast: float | None
    took: float | None
    cost: str | None
    current: Night | None
    api: str
    runs: str


def begin_document(
    history: HistoryDocument,
    run: RunDocument | None,
    source: Mapping[str, object],
    found: tuple[Sequence[str], str | None],
    *,
    api: str,
    runs: str,
    warning: str | None = None,
) -> BeginDocument:
    """Return the document of the page.

    Args:
        history: of the graph's channel.
        run: the last finished one, for what a night takes.
        source: the spec's ``snapshots``.
        found: keys that are there, and the reason why they could not be listed.
        api: address of Airflow's interface that begins a run.
        runs: address of Airflow's pages of the DAG's runs.
        warning: why a night would not begin at once.
    """
    keys, problem = found
    newest = sorted(keys, key=snapshot_order, reverse=True)
    nights = {night["snapshot"]: night for night in history["nights"]}
    forecast = run["forecast"] if run is not None else None
    took = duration(run) if run is not None else None
    cost = forecast["cost"] if forecast and took is not None else None
    return {
        "kind": "begin",
        "graph": history["graph"],
        "channel": history["channel"] or "production",
        "location": str(source.get("location", "")),
        "problem": problem,
        "warning": warning,
        "rows": [{"snapshot": key, "night": nights.get(key)} for key in newest[:SHOWN]],
        "left_out": len(newest[SHOWN:]),
        "forecast": forecast["expected_seconds"] if forecast else None,
        "took": took,
        "cost": f"{money(cost['actual'] or cost['forecast'])} {cost['currency']}" if cost else None,
        "current": next((night for night in history["nights"] if night["current"]), None),
        "api": api,
        "runs": runs,
    }


def source_of(text: str) -> dict[str, object]:
    """Return the ``snapshots`` of a spec, as the DAG keeps them."""
    found = json.loads(text or "{}")
    return found if isinstance(found, dict) else {}
