"""One training in several ways that should be as good.

    python -m benchmarks.quality.variants gradient [--variance 1] [--loss logistic]

Three graphs and a timeless ICEWS14 are trained in each way from the same seeds, in turn. Prints the tables of
docs/engines.md (``gradient``, ``embeddings``) and docs/gpu.md (``precision``); the figures are kept in
``benchmarks/results``, those of sampled gradients in a file for each variance and loss.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from benchmarks.quality.data import FB15K, FB15K_237, ICEWS14, WN18RR
from benchmarks.quality.triples import imported
from pbg_tasks.progress import say

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.quality.commands import Pbg

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
FIGURES = ("mrr", "hits1", "hits10")
Row = dict[str, Any]
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
    "workers": 1,
    "eval_fraction": 0.0,
}
SETS = {each.name: each for each in (ICEWS14, WN18RR, FB15K_237, FB15K)}
CHANGES: dict[str, dict[str, Any]] = {
    WN18RR.name: {"self_negatives": True, "regularization_coef": 0.05, "lr": 0.7, "batch_size": 100}
}
"""Keys of data sets that learn by other ones."""


@dataclass(frozen=True, slots=True)
class Variants:
    """Ways to train.

    Attributes:
        key: of the config, in which they differ.
        values: of the key; the first is the one that the others are compared with.
        config: changes of ``CONFIG`` for all of them.
        epochs: of each training.
        beside: further overrides of a value, as for ``-p``.
    """

    key: str
    values: tuple[str, ...]
    config: Mapping[str, Any]
    epochs: int = 8
    beside: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def measure(self, pbg: Pbg, *, value: str, seed: int) -> Row:
        """Train in one way and rank the test edges exactly."""
        shutil.rmtree(pbg.directory / "model", ignore_errors=True)
        keys = ("edge_paths=train", f"num_epochs={self.epochs}", f"{self.key}={value}", *self.beside.get(value, ()))
        options = [each for key in keys for each in ("-p", key)]
        trained = pbg("train", "train", "config.json", *options, "--engine", "native", "--seed", str(seed))
        known = ("--filtered", "--known", "train", "--known", "valid")
        found = pbg("eval", "eval", "config.json", "-p", "edge_paths=test", *known)["filtered"]
        figures = {name: found[name] for name in FIGURES}
        return {self.key: value, "seed": seed, "epochs": self.epochs, "seconds": trained["seconds"], **figures}

    def compare(self, results: Path, *, data: Path, seeds: int, only: Sequence[str] | None = None) -> None:
        """Train data sets in every way with every seed.

        Ways take turns. A table of each data set is printed.

        Args:
            results: file of the figures; those of a seed are added when all ways have some, and replace older ones.
            data: folder with the data sets.
            seeds: how many.
            only: names of data sets; None: all.
        """
        kept: dict[str, list[Row]] = json.loads(results.read_text()) if results.exists() else {}
        for name in only or SETS:
            rows: list[Row] = []
            with tempfile.TemporaryDirectory() as directory:
                pbg = imported(Path(directory), data, {**CONFIG, **self.config, **CHANGES.get(name, {})}, SETS[name])
                for seed in range(seeds):
                    for value in self.values:
                        before = pbg.clock.seconds.get("train", {}).get("cpu", 0.0)
                        row = self.measure(pbg, value=value, seed=seed)
                        rows.append(row | {"cpu_seconds": round(pbg.clock.seconds["train"]["cpu"] - before, 1)})
                        say(f"{name}: {rows[-1]}")
                    kept[name] = rows
                    results.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
            print(f"\n{name}, {self.epochs} epochs\n")
            print("\n".join(self.table(rows)))
            print(f"\nCPU of {self.values[0]} / {self.values[1]}, min / median / max: {self._ratios(rows)}")

    def _ratios(self, rows: Sequence[Row]) -> str:
        cpu = {value: [row["cpu_seconds"] for row in rows if row[self.key] == value] for value in self.values[:2]}
        ratios = sorted(first / second for first, second in zip(*cpu.values(), strict=True))
        return " / ".join(f"{each:.2f}" for each in (ratios[0], statistics.median(ratios), ratios[-1]))

    def table(self, rows: Sequence[Row]) -> Iterator[str]:
        """Yield the lines of a table, a line for each way.

        Each has the mean and the deviation over the seeds; a last line for each other way has the mean difference.
        """
        yield f"| {self.key} | filtered MRR | Hits@1 | Hits@10 |"
        yield "|---|---|---|---|"
        for value in self.values:
            found = [row for row in rows if row[self.key] == value]
            cells = [[row[name] for row in found] for name in FIGURES]
            spread = [statistics.stdev(cell) if len(cell) > 1 else float("nan") for cell in cells]
            shown = [f"{statistics.mean(cell):.4f} ± {by:.4f}" for cell, by in zip(cells, spread, strict=True)]
            yield f"| {value} | {' | '.join(shown)} |"
        by_run = {(row[self.key], row["seed"]): row for row in rows}
        seeds, (first, *others) = sorted({row["seed"] for row in rows}), self.values
        for value in others:
            changes = [
                statistics.mean(by_run[value, s][name] - by_run[first, s][name] for s in seeds) for name in FIGURES
            ]
            yield f"| difference, same seed | {' | '.join(f'{change:+.4f}' for change in changes)} |"


MEASURED = {
    "precision": Variants("precision", ("f32", "bf16"), {"workers": 2}),
    "embeddings": Variants(
        "embedding_precision", ("f32", "bf16"), {"dimension": 100, "num_uniform_negs": 100}, epochs=5
    ),
    "gradient": Variants("gradient", ("dense", "sampled"), {"num_uniform_negs": 1000}),
}


def main(
    name: Annotated[Literal["precision", "embeddings", "gradient"], typer.Argument(help="What is compared.")],
    data: Annotated[Path, typer.Option(help="Folder with the data sets.")] = Path("../shared/data"),
    seeds: Annotated[int, typer.Option(help="How many.")] = 3,
    epochs: Annotated[int | None, typer.Option(help="Of each training, instead of the usual ones.")] = None,
    variance: Annotated[float, typer.Option(help="Key gradient_variance of sampled gradients.")] = 0.1,
    loss: Annotated[str, typer.Option(help="Key loss_fn of dense and sampled gradients.")] = CONFIG["loss_fn"],
    only: Annotated[list[str] | None, typer.Option(help="One of the data sets; may be repeated.")] = None,
) -> None:
    """Train in both ways with every seed."""
    ways, results = MEASURED[name], f"{name}.json"
    if name == "gradient":
        ways = replace(
            ways, config={**ways.config, "loss_fn": loss}, beside={"sampled": (f"gradient_variance={variance}",)}
        )
        results = "-".join((name, *(() if loss == CONFIG["loss_fn"] else (loss,)), f"{variance:g}.json"))
    ways = replace(ways, epochs=epochs or ways.epochs)
    ways.compare(RESULTS / results, data=data, seeds=seeds, only=only)


if __name__ == "__main__":
    typer.run(main)
