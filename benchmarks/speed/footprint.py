"""Peak memory of the same training on both sides.

All the processes of each side count. The graph is in one partition and in sixteen.

``memory`` has a graph of Freebase's kind, which PBG would train for too long; this one it trains in minutes, and yet
in one partition the embeddings are most of what a process holds.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks.speed.measurement import Measurement
from benchmarks.speed.memory import MODEL, PARTITIONS, Communities
from benchmarks.speed.usage import WATCH_SECONDS, MemoryWatch
from pbg_tasks.progress import human_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.speed.harness import Tools
    from benchmarks.speed.worker import Worker

_GRAPH, _QUICK = Communities(2_000_000, 4_000_000), Communities(200_000, 400_000)
_FLOAT_BYTES = 4
_PARTED = {"2 in memory": 2, "4 of ours in memory, the default": None}  # PBG always has two partitions in memory
_NOTE = (
    f"{MODEL['workers']} workers, one epoch, one round; of all processes of a side with their Python and torch, seen "
    f"every {WATCH_SECONDS * 1000:.0f} ms; what they share, in /dev/shm too, counts once"
)


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:
    """Train the graph by both in one partition and in sixteen.

    Of sixteen, two are in memory, or our default.
    """
    graph = _QUICK if quick else _GRAPH
    return _compared(tools, graph, 1, {"": None}) + _compared(tools, graph, PARTITIONS, _PARTED)


def _compared(
    tools: Tools, graph: Communities, partitions: int, buffers: Mapping[str, int | None]
) -> list[Measurement]:
    """Train once by PBG, and by us with each buffer.

    A buffer is the number of partitions in memory; its key describes it.
    """
    with tools.scratch() as root:
        with tools.ours("benchmarks.speed.memory:Communities", **asdict(graph)) as maker:
            config = maker("write", folder=str(root), partitions=partitions).value | {"num_epochs": 1}
        theirs = _peak(tools.theirs("WholeTraining", config=config | {"checkpoint_path": str(root / "theirs")}))
        ours = {}
        for told, buffer in buffers.items():
            keys = {"checkpoint_path": str(root / f"ours-{buffer}"), "partition_buffer": buffer}
            ours[told] = _peak(tools.ours("benchmarks.speed.memory:Ours", config=config | keys))
    parts = "1 partition" if partitions == 1 else f"{partitions} partitions"
    title = f"peak memory, {human_count(graph.entities)} entities: {parts}"
    return [_measurement(", ".join(filter(None, (title, told))), graph, each, theirs) for told, each in ours.items()]


def _peak(side: Worker) -> int:
    """Return the most bytes that a training used."""
    with side, MemoryWatch(side.pid) as watch:
        side("train")
    return watch.peak


def _measurement(name: str, graph: Communities, ours: int, theirs: int) -> Measurement:
    details = {"edges": graph.edges, "B of embeddings": graph.entities * MODEL["dimension"] * _FLOAT_BYTES}
    return Measurement(name, "B", ours, theirs, (theirs / ours,), note=_NOTE, details=details)
