"""Cost of ``gradient: sampled`` in quality, and what it saves.

python -m benchmarks.quality.gradient

Three graphs and a timeless ICEWS14 are trained with dense and with sampled gradients from the same seeds, in turn.
Prints the tables of docs/engines.md; the figures are kept in ``benchmarks/results/gradient.json``.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.quality.data import FB15K, FB15K_237, ICEWS14, WN18RR
from benchmarks.quality.precision import CONFIG
from benchmarks.quality.triples import imported
from benchmarks.quality.variants import Row, Variants
from pbg_tasks.progress import say

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "gradient.json"
WAYS = Variants("gradient", ("dense", "sampled"))
SETS = {each.name: each for each in (FB15K, FB15K_237, WN18RR, ICEWS14)}
OF_ALL: dict[str, Any] = {"workers": 1, "num_uniform_negs": 1000}
_WN18RR = {"self_negatives": True, "regularization_coef": 0.05, "lr": 0.7, "batch_size": 100}
CHANGES: dict[str, dict[str, Any]] = {WN18RR.name: _WN18RR}


def main(
    data: Annotated[Path, typer.Option(help="Folder with the data sets.")] = Path("../shared/data"),
    seeds: Annotated[int, typer.Option(help="How many.")] = 3,
    epochs: Annotated[int, typer.Option(help="Of each training.")] = 8,
    only: Annotated[list[str] | None, typer.Option(help="One of the data sets; may be repeated.")] = None,
) -> None:
    """Train in both ways with every seed."""
    kept: dict[str, list[Row]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in only or SETS:
        rows: list[Row] = []
        with tempfile.TemporaryDirectory() as directory:
            pbg = imported(Path(directory), data, CONFIG | OF_ALL | CHANGES.get(name, {}), SETS[name])
            for seed in range(seeds):
                for way in WAYS.values:
                    before = pbg.clock.seconds.get("train", {}).get("cpu", 0.0)
                    row = WAYS.measure(pbg, value=way, seed=seed, epochs=epochs)
                    rows.append(row | {"cpu_seconds": round(pbg.clock.seconds["train"]["cpu"] - before, 1)})
                    say(f"{name}: {rows[-1]}")
        kept[name] = rows
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        print(f"\n{name}, {epochs} epochs\n")
        print("\n".join(WAYS.table(rows)))
        cpu = {way: [row["cpu_seconds"] for row in rows if row["gradient"] == way] for way in WAYS.values}
        ratios = sorted(dense / sampled for dense, sampled in zip(*cpu.values(), strict=True))
        shown = " / ".join(f"{each:.2f}" for each in (ratios[0], statistics.median(ratios), ratios[-1]))
        print(f"\nCPU of dense / sampled, min / median / max: {shown}")


if __name__ == "__main__":
    typer.run(main)
