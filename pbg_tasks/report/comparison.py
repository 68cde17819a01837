"""Document of two runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import JsonValue

    from pbg_tasks.report.documents import Compared, ComparedRelation, ComparisonDocument, RunDocument, Setting, Verdict

FIGURES: tuple[tuple[str, tuple[str, ...], str, int], ...] = (
    ("MRR, filtered", ("metrics", "filtered", "mrr"), "score", 1),
    ("Hits@1, filtered", ("metrics", "filtered", "hits1"), "percent", 1),
    ("Hits@10, filtered", ("metrics", "filtered", "hits10"), "percent", 1),
    ("MRR, raw", ("metrics", "raw", "mrr"), "score", 1),
    ("MRR by popularity", ("metrics", "popularity", "mrr"), "score", 0),
    ("Loss", ("trained", "loss"), "score", 0),
    ("Training edges", ("edges", "train"), "count", 0),
    ("Entities", ("entities", "total"), "count", 0),
    ("New entities", ("entities", "new"), "count", 0),
    ("Gone entities", ("entities", "gone"), "count", 0),
    ("Edges a second", ("trained", "edges_per_second"), "count", 1),
    ("Duration", ("seconds",), "seconds", -1),
)
"""Title, path in a run's document, unit, and the better direction (1: higher, -1: lower, 0: neither)."""
NIGHTLY = ("snapshot", "files", "previous")
RANKED = (("split",), ("eval", "split"), ("eval", "max_candidates"), ("eval", "exclude_self"))
"""Keys of a graph's spec that choose the edges that are ranked, and the candidates."""


def comparison_document(left: RunDocument, right: RunDocument) -> ComparisonDocument:
    """Return the comparison of two documents of ``run_document``.

    Differences are those of the right one to the left one. None of ranks is better or worse where the runs ranked other
    edges or candidates by their specs.
    """
    alike = all(dig(left["spec"], "graph", *path) == dig(right["spec"], "graph", *path) for path in RANKED)
    return {
        "kind": "comparison",
        "graph": right["graph"],
        "runs": [left, right],
        "figures": [
            _compared(
                title,
                unit,
                better if alike or path[0] != "metrics" else 0,
                _figure(left, path),
                _figure(right, path),
            )
            for title, path, unit, better in FIGURES
        ],
        "ranked_alike": alike,
        "relations": _relations(left, right, 1 if alike else 0),
        "settings": _settings(left["spec"], right["spec"]),
    }


def dig(document: Any, *path: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value at a path of keys; None without one."""
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def duration(run: RunDocument) -> float | None:
    """Return the seconds of a run's finished tasks.

    None where its training resumed: only the last try of that is timed.
    """
    return None if dig(run, "trained", "resumed_from") is not None else run["seconds"]


def _figure(run: RunDocument, path: tuple[str, ...]) -> float | None:
    return duration(run) if path == ("seconds",) else dig(run, *path)


def _compared(title: str, unit: str, better: int, left: float | None, right: float | None) -> Compared:
    difference = right - left if left is not None and right is not None else None
    verdict: Verdict = "same" if not difference or not better else "better" if difference * better > 0 else "worse"
    return {
        "title": title,
        "unit": unit,
        "left": left,
        "right": right,
        "difference": difference,
        "verdict": verdict,
    }


def _relations(left: RunDocument, right: RunDocument, better: int) -> list[ComparedRelation]:
    """Compare the MRR of each relation that both runs have.

    The largest difference comes first.
    """
    before = {relation["name"]: relation for relation in left["relations"]}
    rows: list[ComparedRelation] = [
        {
            **_compared(relation["name"], "score", better, before[relation["name"]]["mrr"], relation["mrr"]),
            "queries": relation["queries"],
        }
        for relation in right["relations"]
        if relation["name"] in before
    ]
    return sorted(rows, key=lambda row: -abs(row["difference"] or 0.0))


def _settings(left: Mapping[str, JsonValue], right: Mapping[str, JsonValue]) -> list[Setting]:
    """List the keys of the specs that differ.

    Keys that differ from night to night are left out.
    """
    before, after = _lasting(left), _lasting(right)
    return [
        {"key": key, "left": before.get(key), "right": after.get(key)}
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]


def _lasting(spec: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the values that stay from night to night, by path."""
    return dict(_leaves({key: value for key, value in spec.items() if key not in NIGHTLY}))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any JSON value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{index}]")
    else:
        yield path, value
