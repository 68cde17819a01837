"""Results of evaluation and drift, shortened for people.

They have hundreds of figures. A screen takes the main ones, what was compared, and the worst relations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Part = Mapping[str, object]

_EVALUATED = (
    *("task", "run", "checkpoint", "version", "edge_paths", "split", "negatives", "edges", "sampled", "seconds"),
    *("filtered", "raw", "popularity", "random"),
)
_DRIFTED = ("task", "run", "seconds", "release", "snapshot")
_WORST = 5
_FIGURES = ("count", "mrr", "hits1", "hits10")
_COMPARED = {
    "against": "release before",
    "best": "best release",
    "replaced": "release replaced",
}


def brief(result: Part) -> dict[str, object]:
    """Return a result with the figures for people alone.

    Results of other tasks are as given. That of several tasks has each of theirs shortened.
    """
    shorten = _SHORTENED.get(str(result.get("task")))
    short = dict(result) if shorten is None else shorten(result)
    if isinstance(tasks := result.get("tasks"), dict):
        short["tasks"] = {name: brief(each) if isinstance(each, dict) else each for name, each in tasks.items()}
    return short


def rest_of(result: Part) -> str:
    """Return where all figures of a shortened result are; empty for others."""
    tasks = _part(result, "tasks") or {str(result.get("task")): result}
    if not _SHORTENED.keys() & tasks.keys():
        return ""
    pages = f"; `pbg report {result['run']}` makes pages of them" if result.get("run") else ""
    return f"--json prints all figures{pages}"


def _evaluation(result: Part) -> dict[str, object]:
    short = _headline(result)
    against = _part(result, "against").get("release")
    for key, title in _COMPARED.items():
        part = _part(result, key)
        if part and (key == "against" or part.get("release") != against):
            short[title] = _comparison(part)
    if drift := _part(result, "drift"):
        short["drift"] = {key: drift.get(key) for key in ("release", "snapshot")} | _types(drift)
    return short | _worst(_part(result, "relations"))


def _headline(result: Part) -> dict[str, object]:
    """Return the figures of all ranked edges, with their number."""
    short: dict[str, object] = {}
    for key in (key for key in _EVALUATED if key in result):
        value = result[key]
        if key == "edges" and (total := result.get("held_out")) is not None:
            short[key] = f"{value:,} of {total:,} held out"
        elif key == "sampled" and isinstance(value, bool):  # of a PBG directory: figures
            short["candidates sampled"] = value
        else:
            short[key] = value
        if key == "edges" and (interval := _part(result, "interval")):
            ends = f"{_number(interval.get('low'))} to {_number(interval.get('high'))}"
            short["whole split"] = f"filtered MRR within {ends} (95 % interval)"
    return short


def _comparison(part: Part) -> dict[str, object]:
    short = {key: part[key] for key in ("release", "snapshot", "reason", "edges") if part.get(key) is not None}
    if difference := _part(part, "difference"):
        ends = f"95 % interval {_number(difference.get('low'))} to {_number(difference.get('high'))}"
        short["difference"] = f"MRR {_number(difference.get('mrr'))}, {ends}"
    sides = {"this run": "candidate", "that release": "current"}
    return short | {name: found for name, key in sides.items() if (found := _figures(_part(part, key)))}


def _worst(relations: Part) -> dict[str, object]:
    """Return the relations with the lowest MRR, the lowest first."""
    rows = {printable(name): found for name in relations if (found := _figures(_part(relations, name)))}
    lowest = sorted(rows, key=lambda name: float(str(rows[name].get("mrr", 0))))
    if not rows:
        return {}
    title = "relations" if len(rows) <= _WORST else f"worst of {len(rows):,} relations"
    return {title: {name: rows[name] for name in lowest[:_WORST]}}


def _figures(both: Part) -> dict[str, object]:
    """Return the main figures, filtered ones where there are any."""
    figures = _part(both, "filtered") or _part(both, "raw")
    return {key: figures[key] for key in _FIGURES if figures.get(key) is not None}


def _drift(result: Part) -> dict[str, object]:
    short = {key: result[key] for key in _DRIFTED if key in result} | _types(result)
    listed = result.get("most_moved")
    moved = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    rows = {printable(f"{each.get('entity')} ({each.get('type')})"): _moved(each) for each in moved[:_WORST]}
    return short | ({"most moved": rows} if rows else {})


def _moved(each: Part) -> dict[str, object]:
    names = ("added", "removed", "kept") if "changes" in each else ()  # an earlier version listed ten, and counted none
    changes = _part(each, "changes")
    return {"cosine": each.get("cosine"), **{change: changes.get(change, 0) for change in names}}


def _types(drift: Part) -> dict[str, object]:
    """Return the mean drift of each entity type."""
    rows: dict[str, object] = {}
    for name, found in _part(drift, "types").items():
        row = {key: each for key in ("common", "new", "gone") if (each := _part({"": found}, "").get(key)) is not None}
        means = {key: _part(_part({"": found}, ""), key).get("mean") for key in ("cosine", "overlap")}
        rows[printable(name)] = row | {key: mean for key, mean in means.items() if mean is not None}
    return rows


def _part(of: Part, key: str) -> dict[str, object]:
    found = of.get(key)
    return found if isinstance(found, dict) else {}


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "-"


_SHORTENED: dict[str, Callable[[Part], dict[str, object]]] = {"eval": _evaluation, "drift": _drift}
