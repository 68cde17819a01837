"""Run the experiments that are missing in ``results.json``.

Then write the document, and fail when a target is missed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks import program
from benchmarks.quality.data import cache_directory, obtain
from benchmarks.quality.experiments import BY_NAME, EXPERIMENTS, ROOT
from benchmarks.quality.report import write
from benchmarks.quality.results import Results, missed, recipe
from benchmarks.quality.runner import run
from pbg_tasks.progress import say

RESULTS = Path("benchmarks/quality/results.json")
DOCUMENT, PLOT = Path("docs/quality.md"), Path("docs/quality.svg")
FAST = ("num_epochs=2", "dimension=32")


def main(
    only: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(BY_NAME)}; may be repeated.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0",
    data: Annotated[Path, typer.Option(help="Folder with the data sets, as folders or NAME.tar.zst.")] = Path(
        "../shared/data"
    ),
    *,
    again: Annotated[bool, typer.Option("--again", help="Also run what is in the results already.")] = False,
    fast: Annotated[bool, typer.Option("--fast", help="Two short epochs, to try the way; nothing is kept.")] = False,
) -> None:
    """Measure quality on public data sets."""
    try:
        numbers = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{seeds!r} is no list of numbers", param_hint="--seeds") from None
    unknown = [name for name in only or () if name not in BY_NAME]
    if unknown:
        raise typer.BadParameter(f"no experiment is named {', '.join(unknown)}", param_hint="--only")
    chosen = [experiment for experiment in EXPERIMENTS if experiment.name in (only or BY_NAME)]
    cache, params = cache_directory(), FAST if fast else ()
    results = Results() if fast else Results.read(ROOT / RESULTS)
    for experiment in chosen:
        wanted = recipe(experiment, (ROOT / experiment.config).read_bytes(), params)
        for seed in numbers:
            if not again and results.has(experiment.name, seed, wanted):
                say(f"{experiment.name}, seed {seed}: in {RESULTS} already")
                continue
            say(f"{experiment.name}, seed {seed}: running")
            found = run(
                experiment,
                seed=seed,
                root=ROOT,
                data=obtain(experiment.data, data, cache),
                directory=cache / "runs" / f"{experiment.name}-{seed}",
                params=params,
            )
            print(f"{experiment.name}, seed {seed}: {found.figures}")
            if not fast:
                results = Results.read(ROOT / RESULTS)  # other experiments may have run meanwhile
                results.add(found)
                results.write(ROOT / RESULTS)
                write(results, ROOT / DOCUMENT, ROOT / PLOT)
    if fast:
        return
    results = Results.read(ROOT / RESULTS)
    write(results, ROOT / DOCUMENT, ROOT / PLOT)
    problems = [line for experiment in chosen for line in missed(experiment, results.of(experiment.name))]
    for line in problems:
        print(line)
    raise typer.Exit(bool(problems))


if __name__ == "__main__":
    program.run(main)
