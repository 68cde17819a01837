"""``docs/performance.md`` and its plots, written from the results only."""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import takewhile
from typing import TYPE_CHECKING

from benchmarks.quality.plot import Line, Panel, draw
from benchmarks.speed.bars import Bar, bars
from benchmarks.speed.catalogue import BENCHMARKS, PBG
from benchmarks.speed.table import HEADINGS, cells, markdown, number, target
from pbg_tasks.progress import human_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from benchmarks.speed.catalogue import Benchmark
    from benchmarks.speed.results import Entry, Results

_LONG = 10_000  # figures from here on are shortened
_COLUMN_SHARE = 0.25  # a detail of more entries than this share is a column of their table
_INTRODUCTION = """\
# Performance

| | ours | torchbiggraph | unit | times better |
|---|---|---|---|---|
"""
_SUMMARY = {
    "FB step, native": "[training step](#training-steps), native engine, FB15k",
    "FB step, native bf16": "the same in bf16",
    "FB step, torch": "the same on the torch engine",
    "LJ step, native": "training step, native engine, random graph with LiveJournal's model",
    "epoch of 500 k edges in 16 partitions, with I/O": "[epoch in 16 partitions](#partitions-and-their-io)",
    "import of 10 M edges": "[import](#import) of 10 M edges",
    "filtered evaluation of FB15k, all test edges": "[filtered evaluation](#evaluation) of FB15k",
    "export to TSV": "[export](#export) to TSV",
    "peak memory, 2 M entities: 16 partitions, 4 of ours in memory, the default": (
        "[peak memory](#peak-memory-of-both), 2 M entities, 16 partitions"
    ),
    "FB15k from TSV to filtered MRR 0.79": "[FB15k from TSV to MRR 0.79](#the-race-to-a-filtered-mrr-of-079-on-fb15k)",
}
"""Measurements at the top of the page, with their words there."""
_NIGHTS = """\
[A night](#a-night) of 3 M edges and 1 M entities, dimension 100, five epochs, one worker. The warm one continues the
cold one, with 2 % of the edges changed.

| | CPU seconds | seconds | peak memory, bytes | bytes read | bytes written |
|---|---|---|---|---|---|
"""
_TOTALS = ("CPU seconds", "seconds", "largest peak memory, bytes", "bytes read", "bytes written")
_METHOD = """\
`make bench` measures all this but GPUs and the race, and writes this page from `benchmarks/results/latest.json`, which
has more figures. `make bench-quick` takes ten minutes.

* The rival is torchbiggraph 1.0.0 from PyPI, unpatched, unless a line names another.
* Both run on one machine, in processes of their own, in turns: five rounds or more, or one where noted. Without a rival
  there are three rounds or one.
* Figures are medians. A ratio above 1 is in our favour; its median, least and largest are given. Targets are named
  where they were missed.
* Time is CPU time with one worker or thread, unless noted. Our importer takes all cores; all count.
* Starting, and loading libraries, does not count.
"""
_GROWTH = """\
Cost by size on logarithmic axes: slope 1 is proportional, 0 independent of size. An epoch is a whole `pbg train`.
"""
_BESIDE = {
    ", against PBG with huge pages": "huge pages",
    ", share of the float32 roofline": "roofline",
    ", 2 workers": "2 workers",
    ", of 1": "process",
    ", of 1, the training alone": "training",
}
"""Ends of names whose figure is a column beside that of the name without them."""
_FOLDED = {
    "angel": re.compile(r"(?:Angel, )?(?P<column>write|read) (?P<row>.+)"),
    "night": re.compile(r"(?P<column>\w+ night), (?P<row>\w+)(?P<more>, (?:S3|few tasks))?"),
}
"""For a benchmark, names of which one table has a row and a column each, with our figures alone."""
_VERSIONS = ("python", "torch", "numpy", "duckdb", "torchbiggraph")


def write(results: Results, elsewhere: Mapping[str, Results], document: Path, ratios: Path, growth: Path) -> None:
    """Write the document and its plots.

    Args:
        results: of the measurements; the others are listed as missing.
        elsewhere: of some of them, by host, on other CPUs.
        document: Markdown.
        ratios: SVG in the same directory, of the ratios to torchbiggraph.
        growth: SVG in the same directory, of how cost grows.
    """
    machines = Counter(_machine(entry) for entry in results.entries)
    shared = max(machines, key=machines.__getitem__, default="")
    sections = ("\n".join(_section(each, results.of(each.name), shared)) for each in BENCHMARKS)
    parts = [
        "\n".join(_summary(results)),
        _METHOD,
        *([f"{shared}, unless a section names another.\n"] if shared else []),
    ]
    parts += [*_plots(results, ratios, growth), *_hosts(results, elsewhere, shared), *sections]
    document.write_text("\n".join(parts), encoding="utf-8")


def _summary(results: Results) -> Iterator[str]:
    """Yield the headline figures: ours beside torchbiggraph's, and what a night costs."""
    found = {entry["name"]: entry for entry in results.entries}
    yield _INTRODUCTION.rstrip()
    for name, words in _SUMMARY.items():
        if name in found:
            entry, unit = found[name], found[name]["unit"]
            figures = (number(entry["ours"], unit), number(entry["theirs"], unit), unit)
            ratio = "" if entry["ratio_median"] is None else f"{entry['ratio_median']:.3g}"
            yield f"| {words} | {' | '.join(figures)} | {ratio} |"
    yield ""
    nights = [entry for entry in results.of("night") if _TOTALS[0] in entry.get("details", {})]
    if nights:
        yield _NIGHTS.rstrip()
        for entry in nights:
            words = entry["name"].replace(" of its training", "")
            yield f"| {words} | {' | '.join(_shown(entry['details'][name]) for name in _TOTALS)} |"
        yield ""


def _hosts(results: Results, elsewhere: Mapping[str, Results], machine: str) -> Iterator[str]:
    """Yield a table of figures that were measured on several CPUs.

    It has our figure on each, and its ratio to the rival's there; single tasks of a night are left out. Of the first
    column are the figures of `machine`; those of another host's CPU are in its column.
    """
    places = {"": results, **elsewhere}
    found = {host: {entry["name"]: entry for entry in place.entries} for host, place in places.items()}
    shared = [name for name in found[""] if " night, " not in name and any(name in found[host] for host in elsewhere)]
    if not shared:
        return
    yield "## On other CPUs\n"
    columns = [f"{what}, {host}".removesuffix(", ") for host in places for what in ("ours", "times better")]
    rows, remarks = [["", "unit", *columns]], dict[str, list[str]]()
    shown = {host: list(place.entries) for host, place in elsewhere.items()}
    for name in shared:
        unit, home = found[""][name]["unit"], _home(found[""][name], machine, elsewhere)
        entries = {host: of.get(name) for host, of in found.items()}
        if home:
            if name not in found[home]:
                shown[home].append(found[""][name])
            entries = entries | {"": None, home: entries[home] or entries[""]}
        same = [cells(entry) if entry and entry["unit"] == unit else None for entry in entries.values()]
        rows.append([name, unit, *(cell for each in same for cell in ((each[1], each[4]) if each else ("", "")))])
        remarks.setdefault(_differing_notes(entries), []).append(name)
    yield markdown(rows)
    if different := {remark: names for remark, names in remarks.items() if remark}:
        yield "\nFigures whose work was not the same everywhere:\n"
        yield from (f"* {', '.join(names)}: {remark}." for remark, names in different.items())
    for host, measured in shown.items():
        yield f"\n*{host}*: {_run_there(host, measured)}\n"


def _home(entry: Entry, machine: str, elsewhere: Mapping[str, Results]) -> str:
    """Return the host on whose CPU a figure was measured.

    It is empty for a figure of `machine`, and of a CPU that no host has.
    """
    if _machine(entry) == machine:
        return ""
    return next((host for host, place in elsewhere.items() if _cpu(place.entries[0]) == _cpu(entry)), "")


def _differing_notes(entries: Mapping[str, Entry | None]) -> str:
    """Return by host the parts of notes that others lack.

    It is empty where all have the same note.
    """
    parts = {host: (entry.get("note") or "").split("; ") for host, entry in entries.items() if entry}
    common = set.intersection(*map(set, parts.values()))
    own = {host: "; ".join(part for part in some if part and part not in common) for host, some in parts.items()}
    return "; ".join(f"*{host or 'ours'}*: {note}" for host, note in own.items() if note)


def _run_there(host: str, entries: Sequence[Entry]) -> str:
    """Return a host's circumstances, and the command that measures again."""
    codes = ", ".join(dict.fromkeys(str(entry["revision"]) for entry in entries))
    loads = [entry["environment"]["load"] for entry in entries]
    load = " to ".join(dict.fromkeys((f"{min(loads):g}", f"{max(loads):g}")))
    names = dict[str, dict[str, None]]()
    for entry in entries:
        names.setdefault(entry["rerun"].partition(" ARGS=")[0], {})[entry["benchmark"]] = None
    commands = " and ".join(f'`{make} ARGS="{" ".join(of)} --again --host {host}"`' for make, of in names.items())
    return f"{_machine(entries[0])}; load {load}; code {codes}. {commands} measures it."


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


def _section(benchmark: Benchmark, entries: Sequence[Entry], shared: str) -> Iterator[str]:
    yield f"## {benchmark.title}\n"
    if not entries:
        yield f"`{benchmark.rerun()}`: not measured yet.\n"
        return
    pattern = _FOLDED.get(benchmark.name)
    folded = [entry for entry in entries if pattern and pattern.fullmatch(entry["name"])]
    rest = [entry for entry in entries if entry not in folded]
    if rest:
        yield from _table(rest)
    if pattern and folded:
        yield from _fold(pattern, folded)
    yield from _missed(entries)
    yield _circumstances(benchmark, entries[0], shared)


def _table(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield a table of a row an entry, and its remarks."""
    beside = {entry["name"]: entry for entry in entries}
    rows_of = [entry for entry in entries if _owner(entry["name"]) not in beside]
    columns, remarks = [name for name in _details(rows_of) if name not in _TOTALS], _remarks(rows_of)
    start = _shared_start([entry["name"] for entry in rows_of])
    units = {entry["unit"] for entry in rows_of}
    head = [start.rstrip(",: "), *HEADINGS[1:-1], *columns, *_BESIDE.values()]
    rows = [head]
    for entry in rows_of:
        name, ours, theirs, unit, ratio, _ = cells(entry)
        marks = [str(at) for at, of in enumerate(remarks.values(), 1) if entry["name"] in of and len(of) < len(rows_of)]
        mark = f" <sup>{', '.join(marks)}</sup>" if marks else ""
        details = entry.get("details", {})
        added = [_shown(details[key]) if key in details else "" for key in columns]
        others = [beside.get(entry["name"] + end) for end in _BESIDE]
        added += ["" if other is None else _beside(other, unit) for other in others]
        rows.append([name.removeprefix(start) + mark, ours, theirs, unit, ratio, *added])
    used = [at for at in range(len(head)) if at == 0 or any(row[at] for row in rows[1:])]
    if len(units) == 1 and len(rows_of) > 1:
        used.remove(HEADINGS.index("unit"))
        head[0] = f"{head[0]}, {units.pop()}".removeprefix(", ")
    yield markdown([[row[at] for at in used] for row in rows])
    yield ""
    for at, (remark, of) in enumerate(remarks.items(), 1):
        yield f"{at}. {remark}{' (all)' if len(of) == len(rows_of) > 1 else ''}."
    if remarks:
        yield ""
    for end, column in _BESIDE.items():
        notes = {entry["note"] for entry in entries if entry["name"].endswith(end) and entry.get("note")}
        if any(name + end in beside for name in beside):
            yield f"*{column}*: {'; '.join(sorted(notes))}.\n"


def _missed(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the targets that were missed."""
    start = _shared_start([entry["name"] for entry in entries])
    found = [entry for entry in entries if entry.get("met") is False]
    if found:
        listed = (f"{entry['name'].removeprefix(start)} ({target(entry).partition(':')[0]})" for entry in found)
        yield f"Targets missed: {'; '.join(listed)}.\n"


def _owner(name: str) -> str:
    """Name of the row that shows an entry in a column.

    It is empty for an entry with a row of its own.
    """
    return next((name.removesuffix(end) for end in _BESIDE if name.endswith(end)), "")


def _beside(entry: Entry, unit: str) -> str:
    """Return a ratio, and our figure where units differ."""
    ours, ratio = number(entry["ours"], entry["unit"]), entry["ratio_median"]
    if ratio is None:
        return ours
    return f"{ratio:.3g}" if entry["unit"] == unit else f"{ours} {entry['unit']}: {ratio:.3g}"


def _fold(pattern: re.Pattern[str], entries: Sequence[Entry]) -> Iterator[str]:
    """Yield a table of our figures.

    The pattern finds row and column in a name.
    """
    cases: dict[str, dict[str, str]] = {}
    peaks = dict[str, float]()
    for entry in entries:
        if found := pattern.fullmatch(entry["name"]):
            row, column = found["row"], found["column"] + (found.groupdict().get("more") or "")
            cases.setdefault(row, {})[column] = number(entry["ours"], entry["unit"])
            peak = [value for name, value in entry.get("details", {}).items() if name.startswith("peak")]
            peaks[row] = max([peaks.get(row, 0.0), *peak])
    columns = list(dict.fromkeys(column for row in cases.values() for column in row))
    head = [entries[0]["unit"], *columns, "largest peak, bytes"]
    body = [[row, *(of.get(column, "") for column in columns), _shown(peaks[row])] for row, of in cases.items()]
    yield markdown([head, *body])
    yield ""


def _shared_start(names: Sequence[str]) -> str:
    """Return what several names begin with, up to a comma or colon."""
    parts = [re.split(r"(?<=[,:] )", name)[:-1] for name in names]
    same = takewhile(lambda places: len(set(places)) == 1, zip(*parts, strict=False))
    return "".join(first for first, *_ in same) if len(names) > 1 else ""


def _details(entries: Sequence[Entry]) -> list[str]:
    """Return the details that are columns.

    They are those of many entries, unless all have the same value.
    """
    found = [(name, value) for entry in entries for name, value in entry.get("details", {}).items()]
    counts, values = Counter(name for name, _ in found), Counter(found)
    constant = {name for (name, _), count in values.items() if count == len(entries) > 1}
    return [name for name, count in counts.items() if count > _COLUMN_SHARE * len(entries) and name not in constant]


def _remarks(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """Return each remark with the names of its entries."""
    columns, names = _details(entries), dict[str, list[str]]()
    for entry in entries:
        rest = {name: value for name, value in entry.get("details", {}).items() if name not in {*columns, *_TOTALS}}
        details = ", ".join(f"{name} {_shown(value)}" for name, value in rest.items())
        for remark in (entry.get("note", ""), details):
            if remark:
                names.setdefault(remark, []).append(entry["name"])
    return names


def _shown(value: float) -> str:
    return human_count(value) if abs(value) >= _LONG else f"{value:.4g}"


def _machine(entry: Entry) -> str:
    found = entry["environment"]
    versions = ", ".join(f"{name} {found[name]}" for name in _VERSIONS)
    return f"{found['cpu']}, {found['cores']} cores, huge pages {found['huge_pages']}; {found['features']}; {versions}"


def _cpu(entry: Entry) -> list[str | int]:
    return [entry["environment"][name] for name in ("cpu", "features", "cores")]


def _circumstances(benchmark: Benchmark, entry: Entry, shared: str) -> str:
    found = entry["environment"]
    own = [part for part in _machine(entry).split("; ") if part not in shared.split("; ")]
    circumstances = [*own, f"code {entry['revision']}, {found['date'].partition(' ')[0]}, load {found['load']:g}"]
    return f"`{benchmark.rerun()}`: {'; '.join(circumstances)}.\n"
