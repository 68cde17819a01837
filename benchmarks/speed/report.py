"""``docs/performance.md`` and its plots, written from the results only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from benchmarks.quality.plot import Line, Panel, draw
from benchmarks.speed.bars import Bar, bars
from benchmarks.speed.catalogue import BENCHMARKS, PBG
from benchmarks.speed.table import HEADINGS, cells, markdown
from pbg_tasks.progress import human_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.speed.catalogue import Benchmark
    from benchmarks.speed.results import Entry, Results

_LONG = 10_000  # figures from here on are shortened
_INTRODUCTION = """\
# Performance

Made by `make bench` from `benchmarks/results/latest.json`; every number below is from a run that stands there.
`make bench-quick` measures steps, import, evaluation and export in a few minutes and ends with a table.

Ours is compared with torchbiggraph 1.0.0 from PyPI, unpatched, unless a line names another, on the same machine in the
same run: each side is a process of its own, and rounds are taken in turns (A B A B ...), at least five of each, or one
in the race and where a line notes it; where a round is short, one before does not count. A measurement without a rival
has three rounds or one. Figures are medians of rounds. A ratio is how many times better ours is in one pair of rounds;
its median, least and largest are given. Unless a line notes another measure, time is CPU time, of a process and all it
started, with one worker or thread on either side; only our importer takes all cores, and the time on each counts.
Start-up and loading libraries do not count. The harness is the project's own, since pytest-benchmark and asv take no
turns between programs that need environments of their own.
"""
_GROWTH = """\
Measured points, and the line that fits them best on logarithmic axes; its slope is the exponent: 1 means that cost is
proportional to size, 0 that it does not depend on it. An epoch is a whole `pbg train`: reading, training, checkpoint.
"""


def write(results: Results, document: Path, ratios: Path, growth: Path) -> None:
    """Write the document and its plots.

    Args:
        results: of the measurements; the others are listed as missing.
        document: Markdown.
        ratios: SVG in the same directory, of the ratios to torchbiggraph.
        growth: SVG in the same directory, of how cost grows.
    """
    sections = ("\n".join(_section(each, results.of(each.name))) for each in BENCHMARKS)
    parts = [_INTRODUCTION, *_plots(results, ratios, growth), *sections]
    document.write_text("\n".join(parts), encoding="utf-8")


def _plots(results: Results, ratios: Path, growth: Path) -> Iterator[str]:
    listed = [entry for each in BENCHMARKS if each.against == PBG for entry in results.of(each.name)]
    compared = [entry for entry in listed if entry["ratio_median"] is not None]
    if compared:
        ratios.write_text(bars([_bar(entry) for entry in compared], f"times {PBG}"), encoding="utf-8")
        yield f"![Ratios to {PBG}]({ratios.name})\n"
    grown = [entry for entry in results.entries if entry.get("points")]
    if grown:
        growth.write_text(draw([_panel(entry) for entry in grown]), encoding="utf-8")
        yield f"{_GROWTH}\n![Growth of cost]({growth.name})\n"


def _bar(entry: Entry) -> Bar:
    target = entry.get("target")
    return Bar(entry["name"], entry["ratio_median"], entry["ratio_min"], entry["ratio_max"], target)


def _panel(entry: Entry) -> Panel:
    """Draw the measurements and a line of the fitted slope.

    The line goes through their middle.
    """
    points = [(x, y) for x, y in entry["points"]]
    xs, ys = zip(*points, strict=True)
    middle = [math.exp(sum(map(math.log, side)) / len(side)) for side in (xs, ys)]
    slope = entry["ours"]
    fitted = [(x, middle[1] * (x / middle[0]) ** slope) for x in (min(xs), max(xs))]
    lines = [Line("measured", 0, points), Line(f"slope {slope:.2f}", 1, fitted)]
    return Panel(f"{entry['name']}, CPU seconds", entry["name"].rpartition(" ")[2], lines, logarithmic=True)


def _section(benchmark: Benchmark, entries: Sequence[Entry]) -> Iterator[str]:
    yield f"## {benchmark.title}\n"
    yield f"Rerun: `{benchmark.rerun()}`\n"
    if not entries:
        yield "Not measured yet.\n"
        return
    yield markdown([HEADINGS, *(cells(entry) for entry in entries)])
    yield ""
    yield from _remarks(entries)
    yield _circumstances(entries[0])


def _remarks(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the remarks on entries; equal remarks share one line."""
    names: dict[str, list[str]] = {}
    for entry in entries:
        details = ", ".join(f"{name} {_shown(value)}" for name, value in entry.get("details", {}).items())
        remark = "; ".join(part for part in (entry.get("note", ""), details) if part)
        if remark:
            names.setdefault(remark, []).append(entry["name"])
    for remark, of in names.items():
        yield f"- {'; '.join(of)}: {remark}."
    yield ""


def _shown(value: float) -> str:
    return human_count(value) if abs(value) >= _LONG else f"{value:.4g}"


def _circumstances(entry: Entry) -> str:
    found = entry["environment"]
    versions = ", ".join(f"{name} {found[name]}" for name in ("python", "torch", "numpy", "duckdb", "torchbiggraph"))
    return (
        f"{found['cpu']} ({found['features']}), {found['cores']} cores, load {found['load']} at the start, huge pages "
        f"{found['huge_pages']}; {versions}; code {entry['revision']}, {found['date']} UTC.\n"
    )
