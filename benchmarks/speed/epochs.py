"""Whole epochs of a graph in 16 partitions: buckets in and out, training, and a checkpoint."""

from __future__ import annotations

import json
import statistics
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.speed.measurement import Measurement, in_turns, per_second
from benchmarks.speed.workloads import LIVEJOURNAL, RandomGraph
from pbg_tasks.config import ConfigSchema
from pbg_tasks.tasks.train import train_directory

if TYPE_CHECKING:
    from benchmarks.speed.harness import Tools

MODEL = LIVEJOURNAL | {"dimension": 100}
_GRAPH = RandomGraph(1_000_000, 5_000_000, partitions=16)
_WAITING_TARGET = 0.03
_MANY = 1000


class Ours:
    """``pbg train`` an epoch at a time, each from the checkpoint of the one before.

    Args:
        config: its number of epochs does not count.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._epochs = 0

    def epoch(self) -> int:
        """Train one more epoch; return its edges."""
        before = self._trained()
        self._epochs += 1
        train_directory(ConfigSchema(**self._config | {"num_epochs": self._epochs}))
        return self._trained() - before

    def _lines(self) -> list[dict[str, Any]]:
        path = Path(self._config["checkpoint_path"]) / "training_stats.json"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _trained(self) -> int:
        return sum(line["stats"]["count"] for line in self._lines())

    def shares(self) -> list[float]:
        """Return the share of each epoch that the trainer waited for partitions and edges."""
        return [line["io"]["share"] for line in self._lines() if "io" in line]


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:  # noqa: ARG001 - always whole epochs
    """Measure epochs of both, each by one worker."""
    config = _GRAPH.write(MODEL, tools.directory / "graph")
    theirs = config | {"checkpoint_path": str(tools.directory / "theirs"), "num_epochs": _MANY}
    with tools.ours(f"{__name__}:Ours", config=config) as ours, tools.theirs("Epochs", config=theirs) as pbg:
        rounds = in_turns(tools.pairs, {"ours": partial(ours, "epoch"), "theirs": partial(pbg, "epoch")})
        shares = ours("shares").value[1:]
    title, columns = "epoch in 16 partitions, with I/O", (rounds["ours"], rounds["theirs"])
    waiting = statistics.median(shares)
    note = "of the time until the commit, when the trainer had nothing to train because it read or stored"
    return [
        Measurement.rate(title, "edges/cpu-s", *columns),
        Measurement.rate(f"{title}, wall", "edges/s", *columns, per_second),
        Measurement(f"{title}, share of waiting", "share", waiting, target=_WAITING_TARGET, at_most=True, note=note),
    ]
