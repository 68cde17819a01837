"""Measure what is missing for this code, and write the document.

Prints a table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from benchmarks import program
from benchmarks.quality.data import cache_directory
from benchmarks.speed.catalogue import BENCHMARKS, BY_NAME
from benchmarks.speed.harness import PBG_EPOCHS, RACERS
from benchmarks.speed.report import write
from benchmarks.speed.results import Results
from benchmarks.speed.runner import Runner
from benchmarks.speed.table import HEADINGS, cells
from benchmarks.speed.worker import ROOT
from pbg_tasks.progress import aligned

RESULTS = ROOT / "benchmarks" / "results"
LATEST, QUICK = (RESULTS / f"{name}.json" for name in ("latest", "quick"))
HOSTS = RESULTS / "hosts"
DOCUMENT = ROOT / "docs" / "performance.md"
RATIOS, GROWTH = DOCUMENT.with_suffix(".svg"), DOCUMENT.with_name("performance-growth.svg")


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(BY_NAME)}; all but the race.")] = None,
    data: Annotated[Path, typer.Option(help="Folder with the data sets, as folders or NAME.tar.zst.")] = Path(
        "../shared/data"
    ),
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="The short ones, shorter; kept apart from the others.")
    ] = False,
    race_epochs: Annotated[int, typer.Option(help="Of PBG; with fewer, its time is extrapolated.")] = PBG_EPOCHS,
    racer: Annotated[
        Literal["ours", "theirs"] | None, typer.Option(help="Run one side of the race; the other's end is kept.")
    ] = None,
    edges: Annotated[
        int | None, typer.Option(min=1000, help="Of the graph of `night`; its results are kept apart then.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Also what was measured on this very code.")] = False,
    host: Annotated[
        str | None, typer.Option(help="Keep the results beside the others, as those of another CPU.")
    ] = None,
) -> None:
    """Measure speed and memory against torchbiggraph."""
    unknown = [name for name in names or () if name not in BY_NAME]
    if unknown:
        raise typer.BadParameter(f"no benchmark is named {', '.join(unknown)}")
    chosen = [each for each in BENCHMARKS if (each.name in names if names else not each.apart and each.quick >= quick)]
    apart = quick or edges is not None
    path = HOSTS / f"{host}.json" if host else QUICK if apart else LATEST
    earlier = Results.read(path)
    if quick and host and (longer := [each.name for each in chosen if earlier.has_longer(each.name)]):
        raise typer.BadParameter(f"{path.name} has longer runs of {', '.join(longer)}: leave --host or --quick out")

    def keep(results: Results) -> None:
        results.write(path)
        if host or not apart:
            elsewhere = {each.stem: Results.read(each) for each in sorted(HOSTS.glob("*.json"))}
            measured = {name: of for name, of in elsewhere.items() if of.entries}
            write(Results.read(LATEST), measured, DOCUMENT, RATIOS, GROWTH)

    runner = Runner(
        earlier,
        keep,
        cache_directory(),
        data,
        quick=quick,
        race_epochs=race_epochs,
        racers=RACERS if racer is None else (racer,),
        edges=edges,
    )
    runner.run(chosen, again=again or racer is not None)
    keep(runner.results)
    for name, reason in runner.failures.items():
        print(f"{name} FAILED: {reason}")
    rows = [cells(entry) for benchmark in chosen for entry in runner.results.of(benchmark.name)]
    print(*aligned([HEADINGS, *rows]), sep="\n")
    raise typer.Exit(bool(runner.failures))


if __name__ == "__main__":
    program.run(main)
