"""A month of nights for ``docs/nights.md``.

Both walks, a parallel backfill, a bad day, a bad training, and a rollback.

``python -m benchmarks.nights.story`` measures, and writes the document; with ``--document`` it only writes.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.nights.days import write_snapshot
from benchmarks.nights.graph import Graph
from benchmarks.nights.night import DATA_GATE, QUALITY_GATE, RELEASED, Night, run_nights
from benchmarks.nights.report import write
from benchmarks.nights.results import keep, read
from benchmarks.nights.table import sentences, table
from benchmarks.nights.walk import failures, remove, walk_chain, walk_independently
from pbg_tasks.errors import PbgError
from pbg_tasks.memory import usable_cpus
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.release.releases import rollback

if TYPE_CHECKING:
    from collections.abc import Sequence

ORDER = 0
"""Seed of the order in which the backfill begins its nights."""
ABSURD_RATE = "model.lr=1000"
"""Learning rate of a training that forgets all it has learnt without producing NaN, which would end it."""


class StoryError(PbgError):
    """A night ended in another way than expected."""

    kind = "story"
    exit_code = 1


def backfill(graph: Graph, sequential: Sequence[Night], *, at_once: int) -> dict[str, Any]:
    """Run all independent nights again and compare every release.

    Several run at once and in any order. Tonight's, the newest, is among them: older days come before it, beside it,
    and after it. Their store is emptied before: the random draws of a night follow from its spec, which names its
    store.

    Raises:
        StoryError: a release has other bytes, or the channel does not serve the newest day.
    """
    say(f"backfill: {len(graph.days)} nights, {at_once} at once")
    spec, store = graph.spec("independent"), f"{graph.place}/independent"
    remove(store)
    started = time.monotonic()
    shuffled = random.Random(ORDER).sample(graph.days, len(graph.days))  # noqa: S311 - nothing to guess
    nights = sorted(walk_independently(spec, shuffled, at_once=at_once), key=lambda night: night.day)
    seconds = time.monotonic() - started
    different = [night.day for night, same in zip(nights, sequential, strict=True) if night.manifest != same.manifest]
    current = Channel(open_store(store), "production").current().release
    if different or current is None or current.snapshot != graph.days[-1]:
        raise StoryError(f"the backfill differs on {different}; it serves {current and current.snapshot}")
    return {
        "nights": len(nights),
        "at_once": at_once,
        "before_the_newest": shuffled.index(graph.days[-1]),
        "equal": len(nights) - len(different),
        "serves": current.snapshot,
        "seconds": round(seconds, 1),
        "sequential_seconds": round(sum(night.seconds for night in sequential), 1),
    }


def bad_days(graph: Graph, spec: Path) -> list[dict[str, Any]]:
    """Run bad nights of the next day, then a good one.

    The day loses half of its edges, then a column, then it is trained absurdly; in the end it runs unchanged.

    Returns:
        ``what`` was wrong with each, and its outcome.

    Raises:
        StoryError: a gate let it pass, or the channel moved.
    """
    day, edges = graph.day_after()
    place, channel = open_store(graph.place), Channel(open_store(f"{graph.place}/chain"), "production")
    before = channel.current().release
    found = []

    def expect(what: str, outcome: str, *params: str) -> None:
        (night,) = run_nights(spec, [day], *params)
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


def roll_back(graph: Graph, spec: Path) -> dict[str, Any]:
    """Go one release back and forward again; return both times.

    Raises:
        StoryError: the channel serves another release than it should.
    """
    channel = Channel(open_store(f"{graph.place}/chain"), "production")
    there = channel.current().release
    if there is None:
        raise StoryError("the chain has no release to roll back")
    seconds = {}
    for way, target in (("back", None), ("forward", there.seq)):
        started = time.monotonic()
        moved = rollback(spec, to=target)
        served = channel.current().release
        seconds[way] = round(time.monotonic() - started, 3)
        if served is None or served.seq != moved["release"]:
            raise StoryError(f"rolled {way} to release {moved['release']}, the channel serves {served and served.seq}")
    return {"from": there.seq, "seconds": seconds}


def tell(data: str, source: Path, days: int, store: str | None) -> None:
    """Run everything, keep the figures, and write the document.

    Raises:
        StoryError: a step ended in another way than expected.
    """
    with tempfile.TemporaryDirectory(prefix="pbg-nights-") as scratch:
        graph = Graph.write(data, source, place=store or f"{scratch}/graph", specs=Path(scratch), count=days)
        chained = graph.spec("chain")
        with ThreadPoolExecutor(1) as beside:  # they share no store
            alone = beside.submit(walk_independently, graph.spec("independent"), graph.days, at_once=1)
            chain = walk_chain(graph, chained, compare=True)
            independent = alone.result()
        if missed := failures([*chain, *independent]):
            raise StoryError("; ".join(["these nights were not released", *missed]))
        walks = {
            "chain": [night.to_json() for night in chain],
            "independent": [night.to_json() for night in independent],
        }
        story = {
            **walks,
            "backfill": backfill(graph, independent, at_once=2 * usable_cpus()),
            "bad_days": bad_days(graph, chained),
            "rollback": roll_back(graph, chained),
        }
    keep("stories", graph.name, story)
    print(table(walks))
    print(sentences(walks))


def main(
    data: Annotated[str, typer.Argument(help="As of `python -m benchmarks.nights`.")] = "icews14",
    days: Annotated[int, typer.Option(min=3, help="How many nights, before the one that goes wrong.")] = 30,
    store: Annotated[
        str | None, typer.Option(help="Folder or s3:// prefix, kept; a folder that goes unless given.")
    ] = None,
    source: Annotated[Path, typer.Option(help="Folder with the data set, as a folder or archive.")] = Path(
        "../shared/data"
    ),
    *,
    document: Annotated[bool, typer.Option("--document", help="Only write the document, of what was kept.")] = False,
) -> None:
    """Measure a month of nights, and write the document.

    The status is 1 when a night ended in another way than expected.
    """
    if not document:
        tell(data, source, days, store)
    write(read())


if __name__ == "__main__":
    try:
        typer.run(main)
    except PbgError as error:
        sys.exit(f"error: {error.kind}: {error}")
