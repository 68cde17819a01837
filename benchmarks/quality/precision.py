"""Cost of ``precision: bf16`` in quality.

python -m benchmarks.quality.precision

The same graph and seeds are trained with exact products and with rounded ones. Prints the table of docs/engines.md; the
figures are kept in ``benchmarks/results/precision.json``.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.quality.triples import imported

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.quality.commands import Pbg

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "precision.json"
PRECISIONS = ("f32", "bf16")
FIGURES = ("mrr", "hits1", "hits10")
CONFIG: dict[str, Any] = {
    "entity_path": "data",
    "edge_paths": ["train", "valid", "test"],
    "checkpoint_path": "model",
    "entities": {"all": {"num_partitions": 1}},
    "relations": [{"name": "all_edges", "lhs": "all", "rhs": "all", "operator": "complex_diagonal"}],
    "dynamic_relations": True,
    "dimension": 200,
    "global_emb": False,
    "comparator": "dot",
    "loss_fn": "softmax",
    "num_uniform_negs": 500,
    "regularization_coef": 1e-3,
    "regularizer": "N3",
    "lr": 0.1,
    "workers": 2,
    "eval_fraction": 0.0,
}
Row = dict[str, Any]


def measure(pbg: Pbg, *, precision: str, seed: int, epochs: int) -> Row:
    """Train in one precision and rank the test edges exactly."""
    shutil.rmtree(pbg.directory / "model", ignore_errors=True)
    options = ["-p", "edge_paths=train", "-p", f"num_epochs={epochs}", "-p", f"precision={precision}"]
    trained = pbg("train", "train", "config.json", *options, "--engine", "native", "--seed", str(seed))
    known = ("--filtered", "--known", "train", "--known", "valid")
    found = pbg("eval", "eval", "config.json", "-p", "edge_paths=test", *known)["filtered"]
    figures = {name: found[name] for name in FIGURES}
    return {"precision": precision, "seed": seed, "epochs": epochs, "seconds": trained["seconds"], **figures}


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table, a line for each precision.

    Each has the mean and the deviation over the seeds; the last line has the mean difference.
    """
    yield "| precision | filtered MRR | Hits@1 | Hits@10 |"
    yield "|---|---|---|---|"
    for precision in PRECISIONS:
        found = [row for row in rows if row["precision"] == precision]
        cells = [[row[name] for row in found] for name in FIGURES]
        spread = [statistics.stdev(cell) if len(cell) > 1 else float("nan") for cell in cells]
        shown = [f"{statistics.mean(cell):.4f} ± {by:.4f}" for cell, by in zip(cells, spread, strict=True)]
        yield f"| {precision} | {' | '.join(shown)} |"
    by_run = {(row["precision"], row["seed"]): row for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    changes = [statistics.mean(by_run["bf16", s][name] - by_run["f32", s][name] for s in seeds) for name in FIGURES]
    yield f"| difference, same seed | {' | '.join(f'{change:+.4f}' for change in changes)} |"


def main(
    data: Annotated[Path, typer.Option(help="Folder with the data sets.")] = Path("../shared/data"),
    seeds: Annotated[int, typer.Option(help="How many.")] = 3,
    epochs: Annotated[int, typer.Option(help="Of each training.")] = 8,
) -> None:
    """Train in both precisions with every seed."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory:
        pbg = imported(Path(directory), data, CONFIG)
        for seed in range(seeds):
            for precision in PRECISIONS:
                rows.append(measure(pbg, precision=precision, seed=seed, epochs=epochs))
                print(rows[-1], flush=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    typer.run(main)
