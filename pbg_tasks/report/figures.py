"""Plots for plotly.js: traces and axes as plain values.

Colours are names that the style sheet defines.
"""

from __future__ import annotations

import math
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.report.documents import IterationRow, MrrLimits, Night, RunDocument, Training
    from pbg_tasks.report.embedding_map import MapDocument

BLUE, ORANGE, GREEN, RED, GREY = COLOURS = "--c1", "--c2", "--c3", "--c4", "--c5"
Figure = dict[str, Any]  # in the form that plotly.js defines
NightFigure = Literal["mrr", "cosine", "edges", "seconds"]
STOPPED = ("refused", "failed", "damaged")
"""States of nights that did not become a release and will not."""
_MARKS = 8  # largest number of marks on an axis of epochs
_FROM_ZERO: Figure = {"rangemode": "tozero"}
"""Axis that begins at 0: scaled to its values, it would show a change of one percent as a cliff."""


def loss(training: Training) -> Figure | None:
    """Plot the loss of each committed iteration."""
    points = training["iterations"]
    if not points:
        return None
    x = _epochs(points)
    lines = [_line("loss", x, [each["loss"] for each in points], BLUE)]
    return _figure(lines, x="epoch", y="loss per edge", layout={"yaxis": _FROM_ZERO})


def held_out(training: Training) -> Figure | None:
    """Plot the MRR of the edges that training held out, if any."""
    points = [each for each in training["iterations"] if each["mrr"] is not None]
    if not points:
        return None
    x = _epochs(points)
    lines = [_line("MRR", x, [each["mrr"] for each in points], GREEN)]
    return _figure(lines, x="epoch", y="MRR among negatives", layout={"yaxis": _FROM_ZERO})


def throughput(training: Training) -> Figure | None:
    """Plot the seconds of training and of waiting, by iteration.

    An iteration waits for the store or the disk.
    """
    points = [each for each in training["iterations"] if each["seconds"]]
    if not points:
        return None
    x = _epochs(points)
    worked = [round(seconds - (each["waited"] or 0.0), 3) for each in points if (seconds := each["seconds"])]
    waited = [each["waited"] for each in points]
    bars = [_bars("training", x, worked, BLUE), _bars("waiting for I/O", x, waited, ORANGE)]
    return _figure(bars, x="epoch", y="seconds", layout={"barmode": "stack"})


def speed(training: Training) -> Figure | None:
    """Plot the edges a second of each iteration, waiting included.

    An iteration that resumed stored work looks faster than it was, because its seconds are those of its last attempt;
    ``edges_per_second`` of the training counts the edges of that attempt alone.
    """
    points = [each for each in training["iterations"] if each["seconds"]]
    if not points:
        return None
    rates = [round(each["edges"] / seconds) for each in points if (seconds := each["seconds"])]
    lines = [_line("edges/s", _epochs(points), rates, BLUE)]
    return _figure(lines, x="epoch", y="edges a second", layout={"yaxis": _FROM_ZERO})


def metrics(found: Mapping[str, Mapping[str, float | None]]) -> Figure | None:
    """Plot the MRR of the model and of simpler rankings."""
    kinds = {"filtered": ("filtered", BLUE), "raw": ("raw", GREY), "popularity": ("by popularity", ORANGE)}
    bars = [(label, found[kind]["mrr"], colour) for kind, (label, colour) in kinds.items() if kind in found]
    if not bars:
        return None
    labels, values, colours = (list(column) for column in zip(*bars, strict=True))
    trace = {"type": "bar", "name": "MRR", "x": values, "y": labels, "orientation": "h", "marker": {"color": colours}}
    return _figure([trace], x="MRR", y="", layout={"yaxis": {"autorange": "reversed", "type": "category"}})


def degrees(found: Mapping[str, Sequence[int]]) -> Figure | None:
    """Plot the number of entities by their number of edges.

    The classes are powers of two.
    """
    if not found:
        return None
    traces = []
    for (kind, counts), colour in zip(found.items(), cycle(COLOURS), strict=False):
        classes = [_degree_class(place) for place in range(len(counts))]
        traces.append(_bars(kind, classes, counts, colour))
    return _figure(traces, x="edges of an entity", y="entities", layout={"xaxis": {"type": "category"}})


def deciles(found: Mapping[str, Sequence[Mapping[str, float | None]]]) -> Figure | None:
    """Plot the similarity of vectors to last night's, by degree.

    The degree of an entity is its number of edges.
    """
    if not any(found.values()):
        return None
    traces, cosines = [], []
    for (kind, rows), colour in zip(found.items(), cycle(COLOURS), strict=False):
        x, y = [each["decile"] for each in rows], [each["cosine"] for each in rows]
        traces.append(_line(kind, x, y, colour))
        cosines += y
    axis = _cosine_axis([cosine for cosine in cosines if cosine is not None and math.isfinite(cosine)])
    return _figure(traces, x="decile of degree", y="cosine to the release before", layout={"yaxis": axis})


def nights(rows: Sequence[Night], key: NightFigure, title: str, limits: MrrLimits | None = None) -> Figure | None:
    """Plot a figure of each night without exaggeration.

    A line joins the last release of each snapshot, or its last run where it has none. Nights that were refused or
    failed, runs that were not published, and releases that a later one of their snapshot superseded, stand beside it.
    A night under way has no duration yet: it would look like the quickest. The axis begins at 0; that of a cosine ends
    at 1. Bands show what the gate refuses, and the fall that it allows.

    Args:
        rows: nights in order.
        key: of the figure.
        title: of its axis.
        limits: of the gate for the figure; None: it has none.
    """
    unknown = ("running",) if key == "seconds" else ()
    known = [row for row in rows if row[key] is not None and row["state"] not in unknown]
    if not known:
        return None
    ended = [row for row in known if row["state"] not in STOPPED]
    ended.sort(key=lambda row: row["state"] == "released")  # a trial after a release does not take its place
    last = {row["snapshot"]: row["run"] for row in ended}
    joined = [row for row in known if last.get(row["snapshot"]) == row["run"]]
    stopped = [row for row in known if row["state"] in STOPPED]
    others = [row for row in known if row not in joined and row not in stopped]
    traces = [_line("nights", [row["snapshot"] for row in joined], [row[key] for row in joined], BLUE)]
    for name, beside, colour, symbol in (
        ("superseded", [row for row in others if row["state"] == "released"], GREY, "circle-open"),
        ("not published", [row for row in others if row["state"] != "released"], GREY, "diamond-open"),
        ("refused or failed", stopped, RED, "x"),
    ):
        if beside:
            marker = {"color": colour, "symbol": symbol, "size": 10}
            x, y = [row["snapshot"] for row in beside], [row[key] for row in beside]
            traces.append({"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y, "marker": marker})
    every = list(dict.fromkeys(row["snapshot"] for row in known))
    layout: Figure = {"xaxis": {"type": "category", "categoryorder": "array", "categoryarray": every, "nticks": 6}}
    figures = [value for row in known if (value := row[key]) is not None and math.isfinite(value)]
    layout["yaxis"] = _cosine_axis(figures) if key == "cosine" else _FROM_ZERO
    if limits is not None:
        layout["shapes"] = _bands(limits)
    return _figure(traces, x="snapshot", y=title, layout=layout)


def _cosine_axis(values: Sequence[float]) -> Figure:
    """Return an axis that ends at 1.

    It begins a tenth below all values, at 0.9 at most.
    """
    low = math.floor(10 * min(values, default=1.0)) / 10
    return {"range": [min(0.9, low), 1.0]}


def _bands(limits: MrrLimits) -> list[Figure]:
    """Return bands of what a gate refuses and of an allowed fall."""
    floor, current = limits["floor"] or 0.0, limits["current"] or 0.0
    refused = max(floor, limits["fall"] or 0.0)
    edges = ((0.0, floor, RED, 0.2), (floor, refused, RED, 0.1), (refused, current, ORANGE, 0.16))
    return [_band(*edge) for edge in edges if edge[0] < edge[1]]


def _band(low: float, high: float, colour: str, opacity: float) -> Figure:
    """Return a band over the whole width."""
    return {
        "type": "rect",
        "xref": "paper",
        "yref": "y",
        "x0": 0,
        "x1": 1,
        "y0": low,
        "y1": high,
        "fillcolor": colour,
        "opacity": opacity,
        "line": {"width": 0},
        "layer": "below",
    }


def embedding_map(found: MapDocument) -> Figure:
    """Plot the map of an embedding, the types in colours.

    Places by the release before are rings.
    """
    colours = (BLUE, ORANGE, GREEN, RED)
    traces, before = [], []
    for number, (kind, points) in enumerate(found["types"].items()):
        colour = colours[number % len(colours)]
        names = [point["name"] for point in points]
        traces.append(
            _dots(kind, names, [point["at"] for point in points], {"color": colour, "size": 7, "opacity": 0.75})
        )
        earlier = [(point["name"], place) for point in points if (place := point["before"]) is not None]
        if earlier:
            label = f"{kind}, release {found['release']}"
            ring = {"color": colour, "size": 9, "symbol": "circle-open", "opacity": 0.45}
            names, places = [name for name, _ in earlier], [place for _, place in earlier]
            before.append(_dots(label, names, places, ring))
    layout = {
        "xaxis": {"zeroline": False, "showticklabels": False},
        "yaxis": {"zeroline": False, "showticklabels": False},
    }
    figure = _figure([*traces, *before], x="first axis", y="second axis", layout=layout)
    figure["layout"]["showlegend"] = True
    return figure


def _dots(name: str, names: Sequence[str], places: Sequence[tuple[float, float]], marker: Figure) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [x for x, _ in places],
        "y": [y for _, y in places],
        "text": list(names),
        "hoverinfo": "text",
        "marker": marker,
    }


def two_losses(left: RunDocument, right: RunDocument) -> Figure | None:
    """Plot the losses of two runs."""
    traces = []
    for run, colour in ((left, ORANGE), (right, BLUE)):
        points = run["training"]["iterations"]
        if points:
            traces.append(_line(run["run"], _epochs(points), [each["loss"] for each in points], colour))
    return _figure(traces, x="epoch", y="loss per edge", layout={"yaxis": _FROM_ZERO}) if traces else None


def _epochs(points: Sequence[IterationRow]) -> list[float]:
    """Return the places of iterations on an axis of epochs.

    Several iterations of one epoch are placed between two epochs.
    """
    parts: dict[int, int] = {}
    for each in points:
        parts[each["epoch"]] = parts.get(each["epoch"], 0) + 1
    chunks = max(parts.values())
    return [(place + 1) / chunks + points[0]["epoch"] - 1 for place in range(len(points))]


def _degree_class(place: int) -> str:
    low = 1 << place
    return "1" if place == 0 else f"{low:,}+"


def _line(name: str, x: Sequence[Any], y: Sequence[Any], colour: str) -> Figure:
    few = len(x) <= 40  # noqa: PLR2004 - beyond it, markers run into each other
    return {
        "type": "scatter",
        "mode": "lines+markers" if few else "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "size": 6},
    }


def _bars(name: str, x: Sequence[Any], y: Sequence[Any], colour: str) -> Figure:
    return {"type": "bar", "name": name, "x": list(x), "y": list(y), "marker": {"color": colour}}


def _whole_step(traces: list[Figure]) -> int:
    """Return the number of epochs between two marks of an axis.

    It is whole, because with a part of an epoch a number would occur twice.
    """
    places = [place for trace in traces for place in trace["x"]]
    return max(1, math.ceil((max(places) - min(places)) / _MARKS)) if places else 1


def _figure(traces: list[Figure], *, x: str, y: str, layout: Figure | None = None) -> Figure:
    epochs = {"tickformat": "d", "dtick": _whole_step(traces)} if x == "epoch" else {}
    axes: Figure = {"xaxis": {"title": {"text": x}, **epochs}, "yaxis": {"title": {"text": y}}}
    for name, value in (layout or {}).items():
        axes[name] = axes[name] | value if name in axes else value
    return {"data": traces, "layout": axes | {"showlegend": len(traces) > 1}}
