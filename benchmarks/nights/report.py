"""``docs/nights.md`` and its plots, written from the results only."""

from __future__ import annotations

from statistics import fmean, stdev
from textwrap import fill
from typing import TYPE_CHECKING, Any

from benchmarks.nights.days import PAST
from benchmarks.nights.graph import GATES, MODEL, SPLIT
from benchmarks.nights.night import RELEASED
from benchmarks.nights.results import ROOT
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
    if block.lstrip().startswith(("#", "|", "!", "```")):
        return block
    return fill(block, WIDTH, break_long_words=False, break_on_hyphens=False)


def _document(stories: dict[str, Story], tuning: dict[str, Any], newcomers: dict[str, Any]) -> Iterator[str]:
    yield f"""\
# Nights

Measured by these commands, which keep the figures in `benchmarks/results/nights.json` and write this page from them;
each night is a `pbg run`, a process of its own:

```
{NEWLINE.join(_command(name, story) for name, story in stories.items())}
```

A shorter walk through days of your own (lines of TSV: head, relation, tail, day; or day, + or -, head, tail) ends with
a table:

```
make nights DATA=icews14 DAYS=10
make nights DATA=path/to/folder DAYS=30 ARGS="--window 60"
```

{" ".join(_of_data(name, story) for name, story in stories.items())}

The model: `{MODEL["comparator"]}`, `{MODEL["loss_fn"]}`, dimension {MODEL["dimension"]}, `{_operator(MODEL)}` unless a
setting names another operator. {SPLIT["test"]:.0%} of the pairs of entities are drawn to be held out as test edges and
{SPLIT["valid"]:.0%} as valid edges, and no night ever trains them. They are hard to answer, for no other edge of the
two is in training. Every MRR here is filtered, of both sides, against every entity.

## Settings

The commands tune both walks on valid edges alone, and test edges decide nothing. Independent nights come first, on a
first, a middle and a last day; the chain keeps their model, and the first night of a chain is an independent night. A
chain is chosen by its valid MRR over all nights, among those that keep nine of ten neighbours. Training: CPU of a
night.

| data | independent night | MRR of valid edges | training | |
|---|---|---|---|---|"""
    for name in stories:
        found = tuning[name]
        for row in found["rows"]:
            mark = "chosen" if row["name"] == found["chosen"] else ""
            cells = f"{row['name']} | {row['valid']:.4f} | {row['train_cpu_seconds']:.2f} s | {mark}"
            yield f"| {TITLES[name]}, {', '.join(found['days'])} | {cells} |"
    yield """
Of the chains below, those with an [anchor](warm-start.md#an-anchor) take every vector a part of the way back to last
night's, [shrinking](warm-start.md#shrinking) multiplies vectors / optimizer sums, [delta
epochs](warm-start.md#delta-epochs) train what is new and a sample of the rest; "1 epoch" is a whole one over all
training edges."""
    yield from _compared(stories)
    yield from _bad_days_of_data(stories)
    if newcomers:
        yield from _newcomers(newcomers)
    yield from _operations(stories[STORY])
    yield """
## Every night

New: entities that the night before did not know. MRR of the night's own held-out edges. Before and now: MRR of the
chain's night before and of this one on the same edges. Cosine and kept of 10: of the chain, against the night
before."""
    for name, story in stories.items():
        yield f"""
{TITLES[name]}:

| day | edges | new | MRR chain | independent | before | now | cosine | kept of 10 |
|---|---|---|---|---|---|---|---|---|"""
        for night, alone in zip(story["chain"], story["independent"], strict=True):
            yield _night_row(night, alone)


def _command(name: str, story: Story) -> str:
    return f"python -m benchmarks.nights.story {name} --days {len(story['chain'])} --first {story['chain'][0]['day']}"


def _operator(model: dict[str, Any]) -> str:
    return str(model["relations"][0]["operator"])


def _of_data(name: str, story: Story) -> str:
    released = [night for night in story["chain"] if night["outcome"] == RELEASED]
    first, last = released[0], released[-1]
    kind = (
        "gains and loses edges, and its nights have the default gates"
        if name != STORY
        else f"holds every triple that was true on some day so far, once, with {PAST} days before the first night"
    )
    return (
        f"{TITLES[name]}: {len(story['chain'])} nights, {story['chain'][0]['day']} to {story['chain'][-1]['day']}; a "
        f"snapshot {kind}: {first['edges']:,} edges of {first['entities']['total']:,} entities on the first night, "
        f"{last['edges']:,} of {last['entities']['total']:,} on the last. Ranking by popularity reaches "
        f"{last['popularity']:.3f} on the last."
    )


def _compared(stories: dict[str, Story]) -> Iterator[str]:
    yield """
## Chain against independent

All walks of a data set are asked the same held-out edges: those that every one of them holds out on a day. CPU is that
of a night's tasks without the start of Python, and of its training alone. Means over the nights after the first. The
difference is of the test MRR, with the 95 % interval of resampled edges, each with its ranks of all nights.

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
        for title, count in story["compared"].get("refused", {}).items():
            yield f"{TITLES[name]}: the quality gate refused {count} nights of the chain '{title}', which is left out."
            yield ""
        yield _verdict(TITLES[name], story["compared"])
        yield ""
    yield """\
Each night holds out a few more edges and has a few more candidates, so MRR of two nights do not measure the same. What
does is the comparison of the quality gate: both nights on the edges and among the candidates that both know.

A chain's vectors stay where they were, so whatever was built on yesterday's still holds. Independent nights share no
space: cosines between them are what is left after the best rotation ([gates.md](gates.md)).

A chain saves epochs only: the tasks beside training cost nearly the same in both walks. On graphs as small as these
they are most of a night. On the graph of 3.0 M edges of [performance.md](performance.md#a-night) an epoch costs 21 CPU
seconds, and the other tasks some 60 in a first night and 80 in a chain's: there a chain of 2 epochs costs a third of
independent nights of 15 or more. Both grow with the edges.

## Neighbours by degree

Of the ten nearest neighbours of the night before, those that an entity keeps, by its number of edges:

| data | walk | 1 edge | 2 | 3 to 6 | more |
|---|---|---|---|---|---|"""
    for name, story in stories.items():
        shares, *_ = ([group["share"] for group in row["by_degree"]] for row in story["compared"]["independent"])
        yield f"| {TITLES[name]} | share of the entities | {' | '.join(f'{share:.0%}' for share in shares)} |"
        for walk in reversed(WALKS):
            for row in story["compared"][walk]:
                cells = " | ".join(f"{group['overlap']:.3f}" for group in row["by_degree"])
                yield f"| {TITLES[name]} | {walk}, {row['name']} | {cells} |"
    yield """
Independent nights share nothing but the graph; what they agree on is what the graph alone determines. The rest is
chance, most of it at entities with one edge or two, which are most entities. There a small movement exchanges
neighbours, so a chain keeps them by moving less: by an anchor, or by a lower learning rate (that of ICEWS14)."""


def _compared_row(data: str, title: str, walk: str, row: dict[str, Any]) -> str:
    kept = "" if row["overlap"] is None or walk != "chain" else f"{row['overlap']:.3f}"
    figures = f"{row['valid']:.4f} | {row['test']:.4f} | {_difference(row)} | {kept} | {row['edges_trained']:,.0f}"
    return f"| {data} | {title} | {figures} | {row['cpu_seconds']:.1f} s | {row['train_cpu_seconds']:.2f} s |"


def _difference(row: dict[str, Any]) -> str:
    found = row["against_independent"]
    return f"{found['mrr']:+.4f} ({found['low']:+.4f} to {found['high']:+.4f})" if found else ""


def _verdict(data: str, found: dict[str, Any]) -> str:
    """Return the chosen chain beside independent nights, as a sentence."""
    (alone,), chain = found["independent"], next(row for row in found["chain"] if row["name"] == found["chosen"])
    gain, low, high = (chain["against_independent"][name] / alone["test"] for name in ("mrr", "low", "high"))
    return (
        f"{data}: on the same test edges of {len(found['days'])} nights ({found['edges']['all']:,} edges, "
        f"{found['edges']['test']:,} of them on the last night) the chain's MRR is {gain:+.1%} against independent "
        f"nights (95 % interval {low:+.1%} to {high:+.1%}), with {chain['overlap']:.1%} of the nearest neighbours "
        f"kept, at {chain['train_cpu_seconds'] / alone['train_cpu_seconds']:.2f} of the CPU of training and "
        f"{chain['cpu_seconds'] / alone['cpu_seconds']:.2f} of that of the whole night."
    )


def _bad_days_of_data(stories: dict[str, Story]) -> Iterator[str]:
    refused = [
        (TITLES[name], walk, night)
        for name, story in stories.items()
        for walk in WALKS
        for night in story[walk]
        if night["outcome"] != RELEASED
    ]
    if refused:
        yield """
## Bad days of the data

AS-733 has days on which a part of the edges is missing, and comes back. By the default gates:

| data | walk | day | ended as | |
|---|---|---|---|---|"""
        for data, walk, night in refused:
            yield f"| {data} | {walk} | {night['day']} | {night['outcome']} | {_cell(night)} |"
        yield """
The channel served the release of the day before, and the night after continued it."""


def _operations(story: Story) -> Iterator[str]:
    backfill, rollback = story["backfill"], story["rollback"]
    bad_day, removed = story["bad_days"][0]["day"], GATES["data"]["max_removed_edges"]["block"]
    limits = f"`data: {{max_removed_edges: {{block: {removed}}}}}` and `max_mrr_drop: {GATES['max_mrr_drop']}`"
    yield f"""
## A backfill in parallel

The last {backfill["nights"]} independent nights of {TITLES[STORY]} again, {backfill["at_once"]} at once and in random
order, into an empty store; tonight's, the newest, begins after {backfill["before_the_newest"]} of them.
{backfill["equal"]} of the {backfill["nights"]} releases have manifests of the same hash as those made one after the
other; a manifest holds the SHA-256 of every file. The channel serves {backfill["serves"]}, the newest: it never went
back.

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

The story trains its first night's snapshot with the model of the independent nights and continues it with the last
night's, in both ways; `python -m benchmarks.nights.newcomers SPEC --before KEY --after KEY` does so for a graph with a
spec. MRR of the second's held-out edges with a new end / of all others; mean of
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
An entity that starts from neighbours is an answer at once and competes with all others. Their MRR falls until training
has put all in their places; the more entities are new, the longer it takes. [warm-start.md](warm-start.md) has more
graphs."""


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
    return str(night["said"]).replace("|", "\\|") or f"release {night['release']}, MRR {night['mrr']:.4f}"


def _night_row(night: Night, alone: Night) -> str:
    drift = night.get("drift", {})
    kept = [f"{drift[name]:.4f}" if name in drift else "" for name in ("cosine", "overlap")]
    frozen = [f"{night['frozen'][side]:.4f}" if "frozen" in night else "" for side in ("before", "now")]
    cells = [
        night["day"],
        f"{night['edges']:,}" if "edges" in night else "",
        f"{night['entities']['new']:,}" if drift else "",
        *(f"{each['mrr']:.4f}" if "mrr" in each else each["outcome"] for each in (night, alone)),
        *frozen,
        *kept,
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
