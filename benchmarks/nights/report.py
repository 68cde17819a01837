"""``docs/nights.md`` and its plots, written from the results only."""

from __future__ import annotations

from statistics import fmean, stdev
from textwrap import fill
from typing import TYPE_CHECKING, Any

from benchmarks.nights.days import PAST
from benchmarks.nights.graph import GATES, MODEL, SPLIT
from benchmarks.nights.night import RELEASED
from benchmarks.nights.results import ROOT
from benchmarks.nights.settings import cheapest_of
from benchmarks.quality.plot import Line, Panel, draw

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DOCUMENT = ROOT / "docs" / "nights.md"
WIDTH = 120
NEWLINE = "\n"
STORY = "icews14"
"""Data of which a bad day, a bad training and a backfill are shown."""
TITLES = {"icews14": "ICEWS14", "as733": "AS-733"}
WALKS = ("chain", "independent")
WAYS = ("neighbours", "random")

Night = dict[str, Any]
Story = dict[str, Any]


def write(results: dict[str, Any]) -> None:
    """Write the document and its plots."""
    stories = {name: results["stories"][name] for name in TITLES if name in results["stories"]}
    newcomers = results.get("newcomers", {})
    text = "\n".join(_document(stories, results.get("tuning", {}), newcomers))
    DOCUMENT.write_text("\n\n".join(map(_wrapped, text.split("\n\n"))) + "\n", encoding="utf-8")
    DOCUMENT.with_suffix(".svg").write_text(draw(_panels(stories[STORY])), encoding="utf-8")
    if newcomers:
        plot = draw([_newcomers_panel(graph, found["rows"]) for graph, found in sorted(newcomers.items())])
        DOCUMENT.with_name("nights-newcomers.svg").write_text(plot, encoding="utf-8")


def _wrapped(block: str) -> str:
    """Break the lines of a paragraph.

    Headings, tables, plots and code stay unchanged.
    """
    if block.lstrip().startswith(("#", "|", "!", "*", "```")):
        return block
    return fill(block, WIDTH, break_long_words=False, break_on_hyphens=False)


def _document(stories: dict[str, Story], tuning: dict[str, Any], newcomers: dict[str, Any]) -> Iterator[str]:
    yield """\
# Nights

A chain, which continues last night's release, beside independent nights, on the days of two real graphs. Means of all
nights after the first, CPU as a share of an independent night's, the difference with its 95 % interval. Of each graph
the chain that is best on valid edges, and the one that trains fewest edges while it is as good on them as independent
nights; both keep nine of ten neighbours:

| | chain | test MRR | against independent nights | neighbours kept | CPU of training | CPU of the night |
|---|---|---|---|---|---|---|"""
    for name, story in stories.items():
        yield from _verdict(TITLES[name], story["compared"])
    yield f"""
{(NEWLINE * 2).join(_of_data(name, story) for name, story in stories.items())}

The model: `{MODEL["comparator"]}`, `{MODEL["loss_fn"]}`, dimension {MODEL["dimension"]}, `{_operator(MODEL)}` unless a
setting names another. Every night holds out {SPLIT["test"]:.0%} of the pairs of entities as test edges and
{SPLIT["valid"]:.0%} as valid edges. They are hard: no other edge of such a pair is in training. Every MRR is
filtered, of both sides, against every entity.

These commands write this page, and each night's figures into `benchmarks/results/nights.json`; a night is a `pbg run`:

```
{NEWLINE.join(_command(name, story) for name, story in stories.items())}
```

Your own days (lines of TSV: head, relation, tail, day; or day, + or -, head, tail) end with a table:

```
make nights DATA=icews14 DAYS=10
make nights DATA=path/to/folder DAYS=30 ARGS="--window 60"
```"""
    yield from _compared(stories)
    yield from _settings(stories, tuning)
    yield from _bad_days_of_data(stories)
    if newcomers:
        yield from _newcomers(newcomers)
    yield from _operations(stories[STORY])


def _settings(stories: dict[str, Story], tuning: dict[str, Any]) -> Iterator[str]:
    yield """
## Settings

Test edges decide nothing. Independent nights are tuned by the MRR of valid edges on a first, a middle and a last day.
The chain has their model and begins with such a night; its setting is the one with the best valid MRR among those that
keep nine of ten neighbours. Valid MRR of independent nights, bold the chosen one:
"""
    names = list(stories)
    yield f"| | {' | '.join(TITLES[name] for name in names)} |"
    yield f"|---{'|---' * len(names)}|"
    for rows in zip(*(tuning[name]["rows"] for name in names), strict=True):
        cells = (_tuned(row, tuning[name]["chosen"]) for name, row in zip(names, rows, strict=True))
        yield f"| {rows[0]['name']} | {' | '.join(cells)} |"


def _tuned(row: dict[str, Any], chosen: str) -> str:
    return f"**{row['valid']:.4f}**" if row["name"] == chosen else f"{row['valid']:.4f}"


def _command(name: str, story: Story) -> str:
    return f"python -m benchmarks.nights.story {name} --days {len(story['chain'])} --first {story['chain'][0]['day']}"


def _operator(model: dict[str, Any]) -> str:
    return str(model["relations"][0]["operator"])


def _of_data(name: str, story: Story) -> str:
    released = [night for night in story["chain"] if night["outcome"] == RELEASED]
    first, last = released[0], released[-1]
    kind = (
        "gains and loses edges; default gates"
        if name != STORY
        else f"holds every triple of its days so far and of the {PAST} days before the first night, once"
    )
    return (
        f"{TITLES[name]}: {len(story['chain'])} nights, {story['chain'][0]['day']} to {story['chain'][-1]['day']}. A "
        f"snapshot {kind}. First night: {first['edges']:,} edges, {first['entities']['total']:,} entities; last: "
        f"{last['edges']:,} and {last['entities']['total']:,}, where ranking by popularity reaches an MRR of "
        f"{last['popularity']:.3f}."
    )


def _compared(stories: dict[str, Story]) -> Iterator[str]:
    yield """
## Chain against independent

All walks are asked the edges that each of them holds out. Means over the nights after the first; CPU of a night's tasks
without the start of Python; the difference is of the test MRR, with the 95 % interval of resampled edges. Bold: the
chosen setting.

* [anchor](warm-start.md#an-anchor): every vector goes a part of the way back to last night's.
* [shrink](warm-start.md#shrinking): vectors / optimizer sums are multiplied by this.
* [delta epoch](warm-start.md#delta-epochs): trains what is new and a sample of the rest; an epoch trains all edges.

![MRR and drift by night](nights.svg)

| data | walk | valid MRR | test MRR | difference | kept of 10 | edges trained | CPU a night | training |
|---|---|---|---|---|---|---|---|---|"""
    for name, story in stories.items():
        found = story["compared"]
        for walk in reversed(WALKS):
            for row in found[walk]:
                title = f"chain, {row['name']}" if walk == "chain" else f"independent, {row['name']}"
                chosen = walk == "chain" and row["name"] == found["chosen"]
                yield _compared_row(TITLES[name], f"**{title}**" if chosen else title, walk, row)
    yield ""
    for name, story in stories.items():
        if refused := story["compared"].get("refused"):
            chains = ", ".join(f"'{title}' ({count})" for title, count in refused.items())
            yield f"{TITLES[name]}: left out are chains of which the quality gate refused nights: {chains}."
            yield ""
        days, edges = story["compared"]["days"], story["compared"]["edges"]
        yield f"{TITLES[name]}: {edges['all']:,} test edges of {len(days)} nights, {edges['test']:,} on the last."
        yield ""
    yield """\
* Do not compare the MRR of two nights: edges and candidates differ. The quality gate compares both on what both know.
* A chain's vectors stay where they were. Independent nights share no space ([gates.md](gates.md)).
* A chain saves epochs only; the other tasks cost nearly the same.
* On the 3.0 M edges of [performance.md](performance.md#a-night) an epoch costs 5 CPU seconds, the other tasks 11 in a
  first night and 14 in a chain's. There a chain of 2 epochs costs a third of independent nights of 11 or more.

## Neighbours by degree

Of the ten nearest neighbours of the night before, those that an entity keeps, by its number of edges:

| data | walk | 1 edge | 2 | 3 to 6 | more |
|---|---|---|---|---|---|"""
    for name, story in stories.items():
        shares, *_ = ([group["share"] for group in row["by_degree"]] for row in story["compared"]["independent"])
        yield f"| {TITLES[name]} | share of the entities | {' | '.join(f'{share:.0%}' for share in shares)} |"
        for walk in reversed(WALKS):
            for row in story["compared"][walk]:
                if walk == "chain" and row["name"] != story["compared"]["chosen"]:
                    continue
                cells = " | ".join(f"{group['overlap']:.3f}" for group in row["by_degree"])
                yield f"| {TITLES[name]} | {walk}, {row['name']} | {cells} |"
    yield """
Most entities have one edge or two; there a small movement exchanges neighbours. A chain keeps them by moving less."""


def _compared_row(data: str, title: str, walk: str, row: dict[str, Any]) -> str:
    kept = "" if row["overlap"] is None or walk != "chain" else f"{row['overlap']:.3f}"
    figures = f"{row['valid']:.4f} | {row['test']:.4f} | {_difference(row)} | {kept} | {row['edges_trained']:,.0f}"
    return f"| {data} | {title} | {figures} | {row['cpu_seconds']:.1f} s | {row['train_cpu_seconds']:.2f} s |"


def _difference(row: dict[str, Any]) -> str:
    found = row["against_independent"]
    return f"{found['mrr']:+.4f} ({found['low']:+.4f} to {found['high']:+.4f})" if found else ""


def _verdict(data: str, found: dict[str, Any]) -> Iterator[str]:
    """Yield the best and the cheapest chain beside independent nights, as rows."""
    (alone,) = found["independent"]
    names = {found["chosen"], cheapest_of(found["chain"], alone["valid"])}
    for chain in (row for row in reversed(found["chain"]) if row["name"] in names):
        gain, low, high = (chain["against_independent"][name] / alone["test"] for name in ("mrr", "low", "high"))
        shares = (chain[name] / alone[name] for name in ("train_cpu_seconds", "cpu_seconds"))
        cells = " | ".join(f"{share:.2f}" for share in shares)
        against = f"{gain:+.1%} ({low:+.1%} to {high:+.1%})"
        yield f"| {data} | {chain['name']} | {chain['test']:.4f} | {against} | {chain['overlap']:.1%} | {cells} |"


def _bad_days_of_data(stories: dict[str, Story]) -> Iterator[str]:
    refused: dict[tuple[str, str, str, str], list[str]] = {}
    for name, story in stories.items():
        for walk in WALKS:
            for night in story[walk]:
                if night["outcome"] != RELEASED:
                    found = (TITLES[name], night["day"], night["outcome"], _cell(night))
                    refused.setdefault(found, []).append(walk)
    if refused:
        yield """
## Bad days of the data

AS-733 has days that lack a part of the edges. The default gates stopped them, the channel kept the release of the day
before, and the next night continued it:

| data | walk | day | ended as | |
|---|---|---|---|---|"""
        for (data, day, outcome, reason), walks in refused.items():
            yield f"| {data} | {' and '.join(walks)} | {day} | {outcome} | {reason} |"


def _operations(story: Story) -> Iterator[str]:
    backfill, rollback = story["backfill"], story["rollback"]
    bad_day, removed = story["bad_days"][0]["day"], GATES["data"]["max_removed_edges"]["block"]
    limits = f"`data: {{max_removed_edges: {{block: {removed}}}}}` and `max_mrr_drop: {GATES['max_mrr_drop']}`"
    yield f"""
## A backfill in parallel

The last {backfill["nights"]} independent nights of {TITLES[STORY]} again, {backfill["at_once"]} at once, in random
order, into an empty store: {backfill["equal"]} releases of {backfill["nights"]} have the same SHA-256 in every file as
those made one after the other. The newest day began after {backfill["before_the_newest"]} of them; the channel went to
it and never back.

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
{rollback["seconds"]["forward"]} s, until a reader sees it."""


def _newcomers(newcomers: dict[str, Any]) -> Iterator[str]:
    yield """
## New entities

A model of the first night is continued with the last night's snapshot; new entities start from neighbours or at random.
Each cell: MRR of held-out edges with a new end / of all others, mean and deviation of the seeds.

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
From neighbours, a new entity ranks well at once. It competes with the others, whose MRR falls until training has put
all in place. On FB15k-237 and CoDEx-S it is the same. For your graph (without `--before`, the first night lacks
5 % of the entities):

```
python -m benchmarks.nights.newcomers SPEC --after KEY [--before KEY]
```"""


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


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


def _cell(night: Night) -> str:
    """Return a night's error without its remedy, or its release."""
    said = str(night["said"]).partition("; ")[0].replace("|", "\\|")
    return said or f"release {night['release']}, MRR {night['mrr']:.4f}"


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
