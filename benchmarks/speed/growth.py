"""Growth of the cost of an epoch and an import.

Costs are CPU seconds, at sizes of the graph a factor apart.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.speed.epochs import MODEL
from benchmarks.speed.importing import write_edges_tsv
from benchmarks.speed.measurement import Measurement
from benchmarks.speed.workloads import RandomGraph, placed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.speed.harness import Tools

_ROUNDS = 3
_EDGES = (125_000, 250_000, 500_000, 1_000_000, 2_000_000)
_ENTITIES = (25_000, 100_000, 400_000, 1_600_000)
_DIMENSIONS = (32, 64, 128, 256, 512)
_PARTITIONS = (1, 2, 4, 8, 16)
_DEFAULT = RandomGraph(100_000, 500_000)
_QUICK_PART = 10


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:
    """Measure an epoch and an import at every size.

    The epoch is of our default engine, by one worker; ``quick``: all sizes are smaller.
    """
    part = _QUICK_PART if quick else 1
    epochs = [
        _fitted(f"growth of an epoch with {what}", [(size, _epoch(tools, *job)) for size, job in jobs.items()])
        for what, jobs in _jobs(part)
    ]
    imports = [(edges, _import(tools, edges)) for edges in _parts(_EDGES, part)]
    return [*epochs, _fitted("growth of an import with edges", imports)]


def _jobs(part: int) -> Iterator[tuple[str, dict[int, tuple[RandomGraph, int]]]]:
    """Yield the growing quantity, with graph and dimension by size.

    Everything else stays.
    """
    entities, edges, dimension = _DEFAULT.entities // part, _DEFAULT.edges // part, MODEL["dimension"]
    yield "edges", {size: (RandomGraph(entities, size), dimension) for size in _parts(_EDGES, part)}
    yield "entities", {size: (RandomGraph(size, edges), dimension) for size in _parts(_ENTITIES, part)}
    yield "dimension", {size: (RandomGraph(entities, edges), size) for size in _DIMENSIONS}
    yield "partitions", {size: (RandomGraph(entities, edges, size), dimension) for size in _PARTITIONS}


def _parts(sizes: tuple[int, ...], part: int) -> list[int]:
    return [size // part for size in sizes]


def _epoch(tools: Tools, graph: RandomGraph, dimension: int) -> float:
    """Return the CPU seconds of an epoch, with input and output.

    The first epoch, which starts anew, does not count.
    """
    with tools.scratch() as directory:
        config = graph.write(MODEL | {"dimension": dimension}, directory)
        with tools.ours("benchmarks.speed.epochs:Ours", config=config) as ours:
            ours("epoch")
            return statistics.median(ours("epoch").cpu for _ in range(_ROUNDS))


def _import(tools: Tools, edges: int) -> float:
    """Return the CPU seconds of an import.

    The first one, which loads libraries, does not count.
    """
    with tools.scratch() as directory:
        source = directory / "edges.tsv"
        write_edges_tsv(source, edges=edges, entities=_DEFAULT.entities)
        config = placed(MODEL, directory)
        with tools.ours("benchmarks.speed.importing:Ours", config=config) as ours:
            done = [ours("import_tsv", files=[str(source)]).cpu for _ in range(1 + _ROUNDS)]
    return statistics.median(done[1:])


def _fitted(name: str, points: Sequence[tuple[float, float]]) -> Measurement:
    sizes, costs = (np.log(side) for side in zip(*points, strict=True))
    slope, _ = np.polyfit(sizes, costs, 1)
    last = (costs[-1] - costs[-2]) / (sizes[-1] - sizes[-2])
    return Measurement(
        name,
        "exponent",
        float(slope),
        note=f"slope of log cost over log size: 1 is proportional, 0 is independent; {_ROUNDS} rounds of each size",
        details={"exponent between the last two sizes": float(last)},
        points=tuple(points),
    )
