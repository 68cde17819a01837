"""Time and memory of opening a release with many names.

    python -m tests.open_release --names 25000000

A night of a random graph is prepared and released, which does not train: its vectors are random ones. A process of its
own opens the release, asks for names and for the nearest of a few, and prints the time of each step and the memory that
the process has reached: all, and the part that is no mapped file. 25 M names of 4 numbers take 6 GB of disk, and some
minutes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks import program
from pbg_tasks.tasks.context import CHAIN
from tests.part_memory import night, write_ring, write_ring_spec

_LOOKED_UP = 100_000


def main(
    names: Annotated[int, typer.Option(min=100, help="Of the release.")] = 25_000_000,
    dimension: Annotated[int, typer.Option(help="Numbers of a vector.")] = 4,
    partitions: Annotated[int, typer.Option(help="Of the names.")] = 4,
    scratch: Annotated[Path | None, typer.Option(help="Folder with room for the night; None: the system's.")] = None,
    opened: Annotated[str | None, typer.Option(help="A release to open, in place of a new one.")] = None,
) -> None:
    """Release a night, then open it in another process."""
    if opened is not None:
        _open(opened, names)
        return
    with tempfile.TemporaryDirectory(prefix="pbg-open-", dir=scratch) as folder:
        root = Path(folder)
        write_ring(root / "d1.parquet", names)
        spec = write_ring_spec(
            root,
            partitions=partitions,
            dimension=dimension,
            split={"valid": 0.000004, "test": 0.000004} if names > 1_000_000 else {"valid": 0.01, "test": 0.01},
            eval={"max_edges": 50},
            gates={"max_mrr_drop": 1.0, "min_over_popularity": {}, "min_over_start": {}},
            resources={"memory_gb": 2, "threads": 1},
        )
        night(spec, "d1", CHAIN[-1])
        words = [sys.executable, "-m", "tests.open_release", "--opened", str(root / "store"), "--names", str(names)]
        subprocess.run(words, check=True)


def _open(release: str, count: int) -> None:
    from pbg_tasks.api import Model

    before = _memory()
    step = _Step(before)
    model = Model.open(release, channel="production")
    step.print("opened")
    found = np.linspace(0, count - 1, min(count, _LOOKED_UP)).astype(np.int64).astype(str).tolist()
    step.print(f"{len(model.embedding(found)):,} vectors by name")
    step.print(f"{len(model.embedding(found)):,} vectors by name, again")
    answers = model.top_k(lhs=found[0], rel=model.relations[0], k=10)
    step.print(f"{len(answers)} best answers of {count:,}")


class _Step:
    """Time of a step, and memory above that of the imports."""

    def __init__(self, before: tuple[float, float]) -> None:
        self._before, self._started = before, time.perf_counter()

    def print(self, what: str) -> None:
        seconds, (most, own) = time.perf_counter() - self._started, _memory()
        since, since_own = most - self._before[0], own - self._before[1]
        print(f"{what}: {seconds:.2f} s; memory: {most:.0f} MB at most, {since:.0f} of it since the imports;", end=" ")
        print(f"without mapped files {own:.0f} MB, {since_own:.0f} of it since", flush=True)
        self._started = time.perf_counter()


def _memory() -> tuple[float, float]:
    """Return the most resident MB, and those of no file."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    most, own = (int(re.search(rf"{key}:\s+(\d+)", status)[1]) / 1000 for key in ("VmHWM", "RssAnon"))  # type: ignore[index]
    return most, own


if __name__ == "__main__":
    program.run(main)
