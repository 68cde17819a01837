"""Whole epochs of a graph in 16 partitions.

Buckets in and out, training, and a checkpoint.
"""

from __future__ import annotations

import json
import statistics
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.speed.measurement import Measurement, in_turns, per_second
from benchmarks.speed.workloads import LIVEJOURNAL, RandomGraph
from pbg_tasks.checkpoint.stats import FILE_NAME, IO_FILE_NAME
from pbg_tasks.config import ConfigSchema
from pbg_tasks.progress import human_count
from pbg_tasks.tasks.training.train import train_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.speed.harness import Tools

MODEL = LIVEJOURNAL | {"dimension": 100}
_PAIRED = RandomGraph(200_000, 500_000, partitions=16)
_LARGE = RandomGraph(1_000_000, 5_000_000, partitions=16)
_LARGE_EPOCHS = 6
_WAITING_TARGET = 0.03
_MANY = 1000
_BUFFERS = {4: "the default", 2: "PBG's, with which nothing is read ahead"}


class Ours:
    """``pbg train`` an epoch at a time.

    Each starts from the checkpoint of the one before.

    Args:
        config: its number of epochs counts for ``shares`` only.
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

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = Path(self._config["checkpoint_path"]) / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _trained(self) -> int:
        return sum(line["stats"]["count"] for line in self._lines(FILE_NAME))

    def shares(self) -> list[float]:
        """Train all epochs at once; return each one's share of waiting.

        The trainer waits for partitions and edges.
        """
        train_directory(ConfigSchema(**self._config))
        return [line["io"]["share"] for line in self._lines(IO_FILE_NAME)]


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:
    """Compare epochs of a small graph, each by one worker.

    Then, unless ``quick``, measure the waiting of a large one of ours.
    """
    found = _compared(tools)
    return found if quick else [*found, *_waiting(tools)]


def _compared(tools: Tools) -> list[Measurement]:
    config = _PAIRED.write(MODEL, tools.directory / "small")
    theirs = config | {"checkpoint_path": str(tools.directory / "theirs"), "num_epochs": _MANY}
    with tools.ours(f"{__name__}:Ours", config=config) as ours, tools.theirs("Epochs", config=theirs) as pbg:
        rounds = in_turns(tools.pairs, {"ours": partial(ours, "epoch"), "theirs": partial(pbg, "epoch")})
    title = f"epoch of {human_count(_PAIRED.edges)} edges in 16 partitions, with I/O"
    return [
        Measurement.rate(title, "edges/cpu-s", rounds["ours"], rounds["theirs"]),
        Measurement.rate(f"{title}, wall", "edges/s", rounds["ours"], rounds["theirs"], per_second),
    ]


def _waiting(tools: Tools) -> Iterator[Measurement]:
    config = _LARGE.write(MODEL, tools.directory / "large")
    for buffer, what in _BUFFERS.items():
        keys = {"num_epochs": _LARGE_EPOCHS, "partition_buffer": buffer}
        checkpoint = str(tools.directory / f"buffer-{buffer}")
        with tools.ours(f"{__name__}:Ours", config=config | keys | {"checkpoint_path": checkpoint}) as ours:
            shares = ours("shares").value
        yield Measurement(
            f"epoch of {human_count(_LARGE.edges)} edges in 16 partitions, {buffer} in memory, share of waiting",
            "share",
            statistics.median(shares),
            target=_WAITING_TARGET if what == "the default" else None,
            at_most=True,
            note=f"{buffer} is {what}; share of the wall time of {_LARGE_EPOCHS} epochs in which nothing was trained "
            "because partitions were read or stored, on a local disk",
        )
