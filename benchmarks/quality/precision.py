"""Cost of ``precision: bf16`` in quality.

python -m benchmarks.quality.precision

The same graph and seeds are trained with exact products and with rounded ones. Prints the table of docs/gpu.md; the
figures are kept in ``benchmarks/results/precision.json``.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.quality.triples import imported
from benchmarks.quality.variants import Row, Variants

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "precision.json"
WAYS = Variants("precision", ("f32", "bf16"))
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
            for precision in WAYS.values:
                rows.append(WAYS.measure(pbg, value=precision, seed=seed, epochs=epochs))
                print(rows[-1], flush=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print("\n".join(WAYS.table(rows)))


if __name__ == "__main__":
    typer.run(main)
