"""Nights of two walks, and what can go wrong with them: ``docs/nights.md``.

``python -m benchmarks.nights.story`` measures, and writes the document; with ``--document`` it only writes.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import program
from benchmarks.nights import newcomers
from benchmarks.nights.comparison import Walked, compare
from benchmarks.nights.days import write_snapshot
from benchmarks.nights.graph import Graph
from benchmarks.nights.night import DATA_GATE, QUALITY_GATE, RELEASED, run_nights
from benchmarks.nights.report import WALKS, write
from benchmarks.nights.results import keep, read
from benchmarks.nights.settings import CHAIN, INDEPENDENT, best_of
from benchmarks.nights.table import sentences, table
from benchmarks.nights.tuning import tune
from benchmarks.nights.walk import failures, remove, walk_chain, walk_independently
from pbg_tasks.errors import PbgError
from pbg_tasks.memory.machine import usable_cpus
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.release.releases import rollback

ORDER = 0
"""Seed of the order in which the backfill begins its nights."""
BACKFILLED = 9
"""Number of nights that are run again."""
ABSURD_RATE = "model.lr=1000"
"""Learning rate of a training that forgets all it has learnt without producing NaN, which would end it."""


class StoryError(PbgError):
    """A night ended in another way than expected."""

    kind = "story"
    exit_code = 1


def backfill(graph: Graph, walked: Walked, *, at_once: int) -> dict[str, Any]:
    """Run the newest independent nights again and compare every release.

    Several run at once and in any order. Tonight's, the newest, is among them: older days come before it, beside it,
    and after it. Their store is emptied before: the random draws of a night follow from its spec, which names its
    store.

    Raises:
        StoryError: a release has other bytes, or the channel does not serve the newest day.
    """
    days = graph.days[-BACKFILLED:]
    say(f"backfill: {len(days)} nights, {at_once} at once")
    spec, store, sequential = walked.spec, walked.store, walked.nights[-BACKFILLED:]
    remove(store)
    started = time.monotonic()
    shuffled = random.Random(ORDER).sample(days, len(days))  # noqa: S311 - nothing to guess
    nights = sorted(walk_independently(spec, shuffled, at_once=at_once), key=lambda night: night.day)
    seconds = time.monotonic() - started
    different = [night.day for night, same in zip(nights, sequential, strict=True) if night.manifest != same.manifest]
    current = Channel(open_store(store), "production").current().release
    if different or current is None or current.snapshot != days[-1]:
        raise StoryError(f"the backfill differs on {different}; it serves {current and current.snapshot}")
    return {
        "nights": len(nights),
        "at_once": at_once,
        "before_the_newest": shuffled.index(days[-1]),
        "equal": len(nights) - len(different),
        "serves": current.snapshot,
        "seconds": round(seconds, 1),
        "sequential_seconds": round(sum(night.seconds for night in sequential), 1),
    }


def bad_days(graph: Graph, walked: Walked) -> list[dict[str, Any]]:
    """Run bad nights of the next day, then a good one.

    The day loses half of its edges, then a column, then it is trained absurdly; in the end it runs unchanged.

    Returns:
        ``what`` was wrong with each, and its outcome.

    Raises:
        StoryError: a gate let it pass, or the channel moved.
    """
    day, edges = graph.day_after()
    place, channel = open_store(graph.place), Channel(open_store(walked.store), "production")
    before = channel.current().release
    found = []

    def expect(what: str, outcome: str, *params: str) -> None:
        (night,) = run_nights(walked.spec, [day], *params)
        say(f"{what}: {night.outcome}: {night.said}")
        moved = channel.current().release != before
        if night.outcome != outcome or moved == (outcome != RELEASED):
            raise StoryError(f"{what}: expected {outcome!r}, got {night.outcome!r}: {night.said}")
        found.append({"what": what, **night.to_json()})

    write_snapshot(place, day, edges[: len(edges) // 2])
    expect("half of the edges lost", DATA_GATE)
    write_snapshot(place, day, edges, columns=("lhs", "relation", "rhs"))
    expect("a column renamed", "input")
    write_snapshot(place, day, edges)
    expect("a learning rate of 1000", QUALITY_GATE, ABSURD_RATE)
    expect("the day as it is", RELEASED)
    return found


def roll_back(walked: Walked) -> dict[str, Any]:
    """Go one release back and forward again; return both times.

    Raises:
        StoryError: the channel serves another release than it should.
    """
    channel = Channel(open_store(walked.store), "production")
    there = channel.current().release
    if there is None:
        raise StoryError("the chain has no release to roll back")
    seconds = {}
    for way, target in (("back", None), ("forward", there.seq)):
        started = time.monotonic()
        moved = rollback(walked.spec, to=target)
        served = channel.current().release
        seconds[way] = round(time.monotonic() - started, 3)
        if served is None or served.seq != moved["release"]:
            raise StoryError(f"rolled {way} to release {moved['release']}, the channel serves {served and served.seq}")
    return {"from": there.seq, "seconds": seconds}


def walked(graph: Graph, name: str) -> dict[str, list[Walked]]:
    """Walk the days independently, and as a chain by setting.

    Args:
        graph: its days.
        name: of the setting of independent nights, whose model both walks train.
    """
    model = INDEPENDENT[name]
    spec = graph.spec("independent", **model)
    alone = Walked(name, spec, f"{graph.place}/independent")
    walks = []
    for number, title in enumerate(CHAIN):
        store = f"{graph.place}/chain-{number}"
        spec = graph.spec("chain", **model, train=CHAIN[title], store=store)
        walks.append(Walked(title, spec.rename(spec.with_name(f"chain-{number}.yaml")), store))
    # One night at a time: others beside it would cost it CPU time.
    alone.nights.extend(walk_independently(alone.spec, graph.days, at_once=1))
    for each in walks:
        each.nights.extend(walk_chain(graph, each.spec))
    return {"chain": walks, "independent": [alone]}


def tell(
    data: str, source: Path, *, days: int, every: int, first: str | None, store: str | None, tuned: bool = False
) -> None:
    """Walk the days with every setting and write the document.

    ICEWS14 only gains edges, so bad days are made of its last one; other data has its own.

    Raises:
        StoryError: a step ended in another way than expected.
    """
    with tempfile.TemporaryDirectory(prefix="pbg-nights-") as scratch:
        graph = Graph.write(
            data, source, place=store or f"{scratch}/graph", specs=Path(scratch), count=days, first=first, every=every
        )
        if not tuned:
            keep("tuning", graph.name, tune(graph, at_once=usable_cpus()))
        name = read()["tuning"][graph.name]["chosen"]
        walks = walked(graph, name)
        found = compare(walks)
        chosen = best_of(found["chain"])
        (alone,), chain = walks["independent"], next(each for each in walks["chain"] if each.name == chosen)
        story: dict[str, Any] = {
            "chain": [night.to_json() for night in chain.nights],
            "independent": [night.to_json() for night in alone.nights],
            "compared": found | {"chosen": chosen},
            "every": every,
        }
        keep("stories", graph.name, story)  # in case that a later step fails
        if not graph.dated.signed:
            if missed := failures([*chain.nights, *alone.nights]):
                raise StoryError("; ".join(["these nights were not released", *missed]))
            story["backfill"] = backfill(graph, alone, at_once=2 * usable_cpus())
            story |= {"bad_days": bad_days(graph, chain), "rollback": roll_back(chain)}
        model = INDEPENDENT[name]
        newcomers.measure(graph.spec("chain", **model), graph.days[0], graph.days[-1])
    keep("stories", graph.name, story)
    print(table({walk: story[walk] for walk in WALKS}))
    print(sentences({walk: story[walk] for walk in WALKS}))


def main(
    data: Annotated[str, typer.Argument(help="As of `python -m benchmarks.nights`.")] = "icews14",
    days: Annotated[int, typer.Option(min=3, help="How many nights, before the one that goes wrong.")] = 30,
    every: Annotated[int, typer.Option(min=1, help="Days from one night to the next.")] = 1,
    first: Annotated[
        str | None, typer.Option(help="The first night's day; leaves a month before unless given.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Folder or s3:// prefix, kept; a folder that goes unless given.")
    ] = None,
    source: Annotated[Path, typer.Option(help="Folder with the data set, as a folder or archive.")] = Path(
        "../shared/data"
    ),
    *,
    tuned: Annotated[bool, typer.Option("--tuned", help="Keep the setting of independent nights.")] = False,
    document: Annotated[bool, typer.Option("--document", help="Only write the document, of what was kept.")] = False,
) -> None:
    """Walk some nights; status 1 when one ends otherwise than it should."""
    if not document:
        tell(data, source, days=days, every=every, first=first, store=store, tuned=tuned)
    write(read())


if __name__ == "__main__":
    program.run(main)
