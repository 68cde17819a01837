"""Simulate gangs or train real ones, and write the document."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks import program
from benchmarks.scaling.real import GRAPH, IDLE_GRAPH, MODEL, real_run
from benchmarks.scaling.report import Results, write
from benchmarks.scaling.scenarios import Row, ahead, published, scaling, ties
from pbg_tasks.progress import say

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "scaling.json"
DOCUMENT = ROOT / "docs" / "distributed-scaling.md"
_REAL = ((1, 0, False), (2, 0, False), (2, 0, True), (2, -1, False), (2, -1, True))


def main(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Simulate small gangs only, and keep nothing.")] = False,
    real: Annotated[
        bool,
        typer.Option("--real", help="Train real gangs instead of simulating; on a machine with nothing else to do."),
    ] = False,
) -> None:
    """Measure how training scales with ranks.

    Gangs are simulated, or real ones are trained.
    """
    results: Results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"real": []}
    if real:
        results["real"] = _shown(real_rows())
    else:
        results["scaling"] = _shown(scaling(quick=quick))
        results["ahead"] = _shown(ahead(quick=quick))
        results["ties"] = _shown(ties(quick=quick))
        results["published"] = _shown(published())
    if not quick:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        write(results, DOCUMENT, DOCUMENT.with_suffix(".svg"))


def _shown(rows: Iterable[Row]) -> list[Row]:
    kept = []
    for row in rows:
        print(row, flush=True)
        kept.append(row)
    return kept


def real_rows() -> Iterator[Row]:
    """Train real gangs of one and two ranks, and simulate them."""
    with tempfile.TemporaryDirectory(prefix="pbg-scaling-") as name:
        graph, idle = (each.write(MODEL, Path(name) / kind) for kind, each in (("graph", GRAPH), ("idle", IDLE_GRAPH)))
        for ranks, servers, ahead in _REAL:
            say(f"training with {ranks} ranks, num_partition_servers {servers}, partitions_ahead {ahead}")
            found = real_run(graph, Path(name) / "graph", ranks, servers=servers, ahead=ahead)
            row = {
                "ranks": ranks,
                "servers": servers,
                "ahead": ahead,
                "load": round(os.getloadavg()[0], 1),
                "seconds": round(found.seconds, 1),
                "busy": round(found.busy, 3),
            }
            if ranks > 1:  # what partitions take on their way, whether behind the training or not
                overhead = real_run(idle, Path(name) / "idle", ranks, servers=servers).overhead
                row |= {"overhead": round(overhead, 3), "simulated_busy": round(found.simulated(overhead).busy, 3)}
            yield row


if __name__ == "__main__":
    program.run(main)
