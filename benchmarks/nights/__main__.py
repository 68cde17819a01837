"""Walk through days of a dated graph, in both ways.

It ends with one table; ``make nights`` calls it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import program
from benchmarks.nights.graph import Graph
from benchmarks.nights.results import keep, read
from benchmarks.nights.settings import kept
from benchmarks.nights.table import sentences, table
from benchmarks.nights.walk import failures, walk_chain, walk_independently
from pbg_tasks.memory.machine import usable_cpus


def main(
    data: Annotated[str, typer.Argument(help="icews14, or a folder or archive of dated TSV files.")] = "icews14",
    days: Annotated[int, typer.Option(min=2, help="How many nights.")] = 10,
    first: Annotated[
        str | None, typer.Option(help="The first night's day; leaves a month before unless given.")
    ] = None,
    window: Annotated[
        int | None, typer.Option(min=1, help="Days of facts in a snapshot; all days so far unless given.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Folder or s3:// prefix, kept; a folder that goes unless given.")
    ] = None,
    source: Annotated[Path, typer.Option(help="Folder with the data set, as a folder or archive.")] = Path(
        "../shared/data"
    ),
) -> None:
    """Walk through days as a chain and independently.

    The status is 1 when a night was not released.
    """
    with tempfile.TemporaryDirectory(prefix="pbg-nights-") as scratch:
        place, specs = store or f"{scratch}/graph", Path(scratch)
        graph = Graph.write(data, source, place=place, specs=specs, count=days, first=first, window=window)
        alone, continued = kept(read(), graph.name)
        chain = walk_chain(graph, graph.spec("chain", **continued), compare=True)
        independent = walk_independently(graph.spec("independent", **alone), graph.days, at_once=usable_cpus())
    walks = {"chain": [night.to_json() for night in chain], "independent": [night.to_json() for night in independent]}
    keep("walks", graph.name, {"window": window, **walks})
    print(table(walks))
    print(sentences(walks))
    if missed := failures([*chain, *independent]):
        sys.exit("\n".join(["these nights were not released:", *missed]))


if __name__ == "__main__":
    program.run(main)
