"""One training in several ways that should be as good.

The graph and the seeds are the same.
"""

from __future__ import annotations

import shutil
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.quality.commands import Pbg

FIGURES = ("mrr", "hits1", "hits10")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Variants:
    """Ways to train.

    Attributes:
        key: of the config, in which they differ.
        values: of the key; the first is the one that the others are compared with.
    """

    key: str
    values: tuple[str, ...]

    def measure(self, pbg: Pbg, *, value: str, seed: int, epochs: int) -> Row:
        """Train in one way and rank the test edges exactly."""
        shutil.rmtree(pbg.directory / "model", ignore_errors=True)
        options = ["-p", "edge_paths=train", "-p", f"num_epochs={epochs}", "-p", f"{self.key}={value}"]
        trained = pbg("train", "train", "config.json", *options, "--engine", "native", "--seed", str(seed))
        known = ("--filtered", "--known", "train", "--known", "valid")
        found = pbg("eval", "eval", "config.json", "-p", "edge_paths=test", *known)["filtered"]
        figures = {name: found[name] for name in FIGURES}
        return {self.key: value, "seed": seed, "epochs": epochs, "seconds": trained["seconds"], **figures}

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
