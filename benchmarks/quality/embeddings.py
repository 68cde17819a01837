"""Cost of ``embedding_precision: bf16`` in quality, and its CPU time.

python -m benchmarks.quality.embeddings

Three graphs and a timeless ICEWS14 are trained with embeddings of float32 and of bfloat16 from the same seeds, in turn.
Prints the tables of docs/engines.md; the figures are kept in ``benchmarks/results/embeddings.json``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.quality.precision import CONFIG
from benchmarks.quality.variants import Variants

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "embeddings.json"
WAYS = Variants("embedding_precision", ("f32", "bf16"))
OF_ALL: dict[str, Any] = {"workers": 1, "dimension": 100, "num_uniform_negs": 100}


def main(
    data: Annotated[Path, typer.Option(help="Folder with the data sets.")] = Path("../shared/data"),
    seeds: Annotated[int, typer.Option(help="How many.")] = 3,
    epochs: Annotated[int, typer.Option(help="Of each training.")] = 5,
    only: Annotated[list[str] | None, typer.Option(help="One of the data sets; may be repeated.")] = None,
) -> None:
    """Train in both ways with every seed."""
    WAYS.compare(RESULTS, CONFIG | OF_ALL, data=data, seeds=seeds, epochs=epochs, only=only)


if __name__ == "__main__":
    typer.run(main)
