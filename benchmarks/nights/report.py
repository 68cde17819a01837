"""``docs/nights.md`` and its plots, written from the results only."""

from __future__ import annotations

from statistics import fmean, stdev
from textwrap import fill
from typing import TYPE_CHECKING, Any

from benchmarks.nights.days import AHEAD, PAST
from benchmarks.nights.graph import EPOCHS, FIRST_EPOCHS, GATES, MODEL, SPLIT
from benchmarks.nights.results import ROOT
from benchmarks.nights.table import means
from benchmarks.quality.plot import Line, Panel, draw

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DOCUMENT = ROOT / "docs" / "nights.md"
WIDTH = 120
STORY = "icews14"
WALKS = ("chain", "independent")
WAYS = ("neighbours", "random")

Night = dict[str, Any]


def write(results: dict[str, Any]) -> None:
    """Write the document and its plots.

    They show a month of ICEWS14 and the new entities of both graphs.
    """
    story, newcomers = results["stories"][STORY], results.get("newcomers", {})
    text = "\n".join(_document(story, newcomers))
    DOCUMENT.write_text("\n\n".join(map(_wrapped, text.split("\n\n"))) + "\n", encoding="utf-8")
    DOCUMENT.with_suffix(".svg").write_text(draw(_panels(story)), encoding="utf-8")
    if newcomers:
        plot = draw([_newcomers_panel(graph, found["rows"]) for graph, found in sorted(newcomers.items())])
        DOCUMENT.with_name("nights-newcomers.svg").write_text(plot, encoding="utf-8")


def _wrapped(block: str) -> str:
    """Break the lines of a paragraph.

    Headings, tables, plots and code stay unchanged.
    """
    if block.lstrip().startswith(("#", "|", "!", "```")):
        return block
    return fill(block, WIDTH, break_long_words=False, break_on_hyphens=False)


def _document(story: dict[str, Any], newcomers: dict[str, Any]) -> Iterator[str]:
    chain, independent = story["chain"], story["independent"]
    mean = means({walk: story[walk] for walk in WALKS})
    backfill, rollback = story["backfill"], story["rollback"]
    before, after = chain[0], chain[-1]
    operator = MODEL["relations"][0]["operator"]
    yield f"""\
# A month of nights

Made by `python -m benchmarks.nights.story` from `benchmarks/results/nights.json`: {len(chain)} nights of ICEWS14,
{before["day"]} to {after["day"]}, each through `pbg run` as a process of its own. A shorter walk through days of your
own (lines of TSV: head, relation, tail, day) ends with a table:

```
make nights DATA=icews14 DAYS=10
make nights DATA=path/to/folder DAYS=30 ARGS="--window 60"
```

A snapshot holds every triple that was true on some day so far, once: {before["edges"]:,} edges of
{before["entities"]["total"]:,} actors on the first night, which has {PAST} days before it, {after["edges"]:,} of
{after["entities"]["total"]:,} on the last. The model: `{operator}`, `{MODEL["comparator"]}`,
`{MODEL["loss_fn"]}`, dimension {MODEL["dimension"]}; {FIRST_EPOCHS} epochs from nothing, {EPOCHS} when a night
continues another. {SPLIT["test"]:.0%} of the pairs of actors are drawn to be held out, and no night ever trains them.
They are hard to answer, for no other edge of the two is in training; ranking by popularity reaches
{after["popularity"]:.3f} on the last night. Every MRR here is filtered, of both sides, against every actor.

![MRR and drift by night](nights.svg)

## Chain against independent

| | chain | independent |
|---|---|---|
| MRR, mean of the nights after the first | {mean["chain"]:.4f} | {mean["independent"]:.4f} |
| MRR of the last night | {after["mrr"]:.4f} | {independent[-1]["mrr"]:.4f} |
| epochs a night | {EPOCHS} | {FIRST_EPOCHS} |"""
    yield f"| a night against the one before, on the same edges | {_gain(chain)} | {_gain(independent)} |"
    for what, name in (("mean cosine to the night before", "cosine"), ("of 10 nearest neighbours kept", "overlap")):
        yield f"| {what} | {_drift(chain, name)} | {_drift(independent, name)} |"
    yield f"""\
| CPU a night, all tasks, without the start of Python | {_cpu(chain)} | {_cpu(independent)} |

Each night holds out a few more edges and has a few more candidates, so MRR of two nights do not measure the same. What
does is the comparison of the quality gate: both nights on the edges and among the candidates that both know.

A chain's vectors stay where they were, so whatever was built on yesterday's still holds. Independent nights share no
space: their cosine is what is left after the best rotation ([gates.md](gates.md)).

## New entities

On every night the chain was also trained with `train.new_entities: random`. Asked are the edges of the {AHEAD} days
that followed, which the night had not seen, at entities that were new that night: {mean["ends"]:,} edges in all. Their
MRR is **{mean["neighbours"]:.4f}** when new entities start from their neighbours, the default, and
**{mean["random"]:.4f}** when they start at random."""
    if newcomers:
        yield from _newcomers(newcomers)
    bad_day, removed = story["bad_days"][0]["day"], GATES["data"]["max_removed_edges"]["block"]
    limits = f"`data: {{max_removed_edges: {{block: {removed}}}}}` and `max_mrr_drop: {GATES['max_mrr_drop']}`"
    yield f"""
## A backfill in parallel

{backfill["nights"]} independent nights again, {backfill["at_once"]} at once and in random order, into an empty store;
tonight's, the newest, begins after {backfill["before_the_newest"]} of them. {backfill["equal"]} of the
{backfill["nights"]} releases have manifests of the same hash as those made one after the other; a manifest holds the
SHA-256 of every file. The channel serves {backfill["serves"]}, the newest: it never went back.

## A bad day, a bad training

The night of {bad_day}, four times, with the gates {limits}:

| | ended as | |
|---|---|---|"""
    for night in story["bad_days"]:
        yield f"| {night['what']} | {night['outcome']} | {_cell(night)} |"
    yield f"""
The channel served the release of the night before until the fourth.

## A rollback

From release {rollback["from"]} to the one before in {rollback["seconds"]["back"]} s, forward again in
{rollback["seconds"]["forward"]} s, until a reader sees it.

## Every night

New: entities that the night before did not know. Before and now: MRR of the night before and of this one on the same
edges. Cosine and kept of 10: of the chain, against the night before. Coming: edges of the next {AHEAD} days at these.

| day | edges | new | MRR chain | independent | before | now | cosine | kept of 10 | coming | neighbours | random |
|---|---|---|---|---|---|---|---|---|---|---|---|"""
    for night, alone in zip(chain, independent, strict=True):
        yield _row(night, alone)


def _newcomers(newcomers: dict[str, Any]) -> Iterator[str]:
    yield """
More of them at once: `python -m benchmarks.nights.newcomers SPEC --before KEY --after KEY` trains one snapshot and
continues it with a later one, in both ways. MRR of the second's held-out edges with a new end / of all others; mean of
the seeds, and how far a seed deviates:

![MRR of new entities by epoch](nights-newcomers.svg)

| | seeds | edges with a new end, of all seeds | new entities start | 0 epochs | 1 epoch | 2 epochs |
|---|---|---|---|---|---|---|"""
    for graph, found in sorted(newcomers.items()):
        rows = found["rows"]
        seeds = sorted({row["seed"] for row in rows})
        ends = sum(row["edges"][0] for row in rows if row["epoch"] == 0 and row["way"] == WAYS[0])
        for way in WAYS:
            cells = []
            for epoch in sorted({row["epoch"] for row in rows}):
                of_epoch = [row for row in rows if row["way"] == way and row["epoch"] == epoch]
                cells.append(" / ".join(_spread([row[kind] for row in of_epoch]) for kind in ("new", "others")))
            title = f"{graph}, {found['before']} to {found['after']}"
            yield f"| {title} | {len(seeds)} | {ends:,} | {way} | {' | '.join(cells)} |"
    yield """
Whoever starts from neighbours is an answer at once and competes with all others, whose MRR falls until training has put
everyone in their place; the more are new, the longer it takes. [warm-start.md](warm-start.md) has more graphs."""


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


def _drift(nights: Sequence[Night], name: str) -> str:
    return f"{fmean(_values(nights[1:], 'drift', name)):.4f}"


def _gain(nights: Sequence[Night]) -> str:
    frozen = [night["frozen"] for night in nights if "frozen" in night]
    return f"{fmean(each['now'] / each['before'] - 1 for each in frozen):+.2%}" if frozen else ""


def _values(nights: Sequence[Night], *path: str) -> list[float]:
    """Return one figure of the nights that have it."""
    found = []
    for night in nights:
        value: Any = night
        for key in path:
            value = (value or {}).get(key)
        if value is not None:
            found.append(float(value))
    return found


def _cpu(nights: Sequence[Night]) -> str:
    return f"{fmean(night['cpu_seconds'] for night in nights[1:]):.1f} s"


def _cell(night: Night) -> str:
    return str(night["said"]).replace("|", "\\|") or f"release {night['release']}, MRR {night['mrr']:.4f}"


def _row(night: Night, alone: Night) -> str:
    drift, newcomers = night.get("drift", {}), night.get("newcomers", {})
    ranked = [f"{newcomers[way]:.3f}" if way in newcomers else "" for way in WAYS]
    kept = [f"{drift[name]:.4f}" if name in drift else "" for name in ("cosine", "overlap")]
    frozen = [f"{night['frozen'][side]:.4f}" if "frozen" in night else "" for side in ("before", "now")]
    cells = [
        night["day"],
        f"{night['edges']:,}",
        f"{night['entities']['new']:,}" if drift else "",
        f"{night['mrr']:.4f}",
        f"{alone['mrr']:.4f}",
        *frozen,
        *kept,
        str(newcomers.get("edges", "")),
        *ranked,
    ]
    return f"| {' | '.join(cells)} |"


def _panels(story: dict[str, Any]) -> list[Panel]:
    def line(name: str, colour: int, walk: str, *path: str) -> Line:
        found = _values(story[walk], *path)
        first = len(story[walk]) - len(found) + 1  # the first night has no night before
        return Line(name, colour, [(float(number), value) for number, value in enumerate(found, first)])

    mrr = [line(walk, colour, walk, "mrr") for colour, walk in enumerate(WALKS)]
    drift = [
        line(f"{walk}: {what}", colour, walk, "drift", name)
        for colour, (walk, name, what) in enumerate(
            (walk, name, what)
            for walk in WALKS
            for name, what in (("cosine", "cosine"), ("overlap", "neighbours kept"))
        )
    ]
    return [Panel("Filtered MRR", "night", mrr, legend="top"), Panel("Against the night before", "night", drift)]


def _newcomers_panel(graph: str, rows: Sequence[dict[str, Any]]) -> Panel:
    lines = [
        Line(
            way,
            colour,
            [(float(row["epoch"]), row["new"]) for row in rows if row["seed"] == seed and row["way"] == way],
        )
        for colour, way in enumerate(WAYS)
        for seed in sorted({row["seed"] for row in rows})
    ]
    return Panel(f"{graph}: MRR at new entities, a line a seed", "epochs of the second night", lines)
