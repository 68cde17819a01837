"""Speed and memory of one process by its workers.

python -m benchmarks.scaling.workers .013 .038 --entities 4000000

Speed is modelled: a worker first needs Python, which one worker has at a time, then the native library on a core of its
own. Times of Python are drawn from an exponential distribution, cores share nothing else. For such a closed queue, mean
value analysis is exact (Reiser and Lavenberg 1980). Memory is measured: a batch is trained, and what the process has
resident is compared with before.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
import typer

from pbg_tasks.config import ModelConfig
from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.memory.machine import resident_bytes
from pbg_tasks.progress import aligned, human_count
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.native import NativeEngine

WORKERS = (1, 2, 4, 8, 16)
_BATCH, _DIMENSION = 1000, 4


def speed_up(workers: int, share: float) -> float:
    """Return the speed of so many workers over that of one.

    Args:
        workers: in the process.
        share: of a batch's time that is Python's.
    """
    waiting = speed = 0.0
    for present in range(1, workers + 1):
        in_python = share * (1 + waiting)
        speed = present / (in_python + 1 - share)
        waiting = speed * in_python
    return speed


def added_bytes(workers: int, entities: int) -> int:
    """Return the bytes that a native training adds to its table.

    Args:
        workers: threads, each of which trains a few batches.
        entities: rows of the table.
    """
    config = ModelConfig.model_validate(
        {
            "entities": {"e": {"num_partitions": 1}},
            "relations": [{"name": "r", "lhs": "e", "rhs": "e"}],
            "dimension": _DIMENSION,
            "batch_size": _BATCH,
            "global_emb": False,
            "workers": workers,
        }
    )
    random = np.random.default_rng(0)
    table = Table(torch.ones(entities, _DIMENSION), torch.ones(entities))
    lhs, rhs = (random.integers(0, entities, 32 * workers * _BATCH) for _ in range(2))
    engine = NativeEngine(config, 1, workers=workers)
    before = resident_bytes() or 0
    engine.train_bucket(
        EdgeList(lhs, rhs, np.zeros_like(lhs)), {"e": table}, {"e": table}, generator=torch.Generator().manual_seed(0)
    )
    return (resident_bytes() or 0) - before


def main(
    shares: Annotated[list[float], typer.Argument(help="Of Python in a batch's time.")],
    entities: Annotated[int, typer.Option(help="Of the table whose training's memory is measured; 0: none.")] = 0,
) -> None:
    """Print speed and memory by workers."""
    rows = [["workers", *map(str, WORKERS)]]
    rows += [
        [f"speed, share of Python {share:.1%}", *(f"{speed_up(n, share):.3g}" for n in WORKERS)] for share in shares
    ]
    if entities:
        added_bytes(1, 1000)  # what the first training loads does not count
        rows.append(
            [f"bytes added, {human_count(entities)} rows", *(human_count(added_bytes(n, entities)) for n in WORKERS)]
        )
        rows.append(["four bytes a row and worker", *(human_count(4 * entities * n) for n in WORKERS)])
    print(*aligned(rows), sep="\n")


if __name__ == "__main__":
    typer.run(main)
