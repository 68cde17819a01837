"""Cost of ``gradient: sampled`` in quality, and what it saves.

    python -m benchmarks.quality.gradient [--variance 1]

Three graphs and a timeless ICEWS14 are trained with dense and with sampled gradients from the same seeds, in turn.
Prints the tables of docs/engines.md; the figures are kept in ``benchmarks/results``, in a file for each variance.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.quality.precision import CONFIG
from benchmarks.quality.variants import Variants

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
WAYS = Variants("gradient", ("dense", "sampled"))
OF_ALL: dict[str, Any] = {"workers": 1, "num_uniform_negs": 1000}


def results_of(variance: float) -> Path:
    """Return the file of a variance's figures."""
    return RESULTS / f"gradient-{variance:g}.json"


def main(
    data: Annotated[Path, typer.Option(help="Folder with the data sets.")] = Path("../shared/data"),
    seeds: Annotated[int, typer.Option(help="How many.")] = 3,
    epochs: Annotated[int, typer.Option(help="Of each training.")] = 8,
    variance: Annotated[float, typer.Option(help="Key gradient_variance of the sampled ones.")] = 0.1,
    only: Annotated[list[str] | None, typer.Option(help="One of the data sets; may be repeated.")] = None,
) -> None:
    """Train in both ways with every seed."""
    ways = replace(WAYS, beside={"sampled": (f"gradient_variance={variance}",)})
    ways.compare(results_of(variance), CONFIG | OF_ALL, data=data, seeds=seeds, epochs=epochs, only=only)


if __name__ == "__main__":
    typer.run(main)
