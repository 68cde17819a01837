"""Angel's formats: embeddings written to a folder and read back.

They have 100 floats each, and are never in memory as a whole.
"""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.speed.measurement import Measurement, per_cpu_second
from pbg_tasks.formats.angel import FORMATS, LocalFolder, MatrixLayout, open_matrix, read_line, write_line, write_matrix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.speed.harness import Tools
    from benchmarks.speed.measurement import Round

DIMENSION = 100
LINE = "LINE text"

_BLOCK = 10_000
_TARGET = 50_000  # rows a CPU second: a million in twenty
_TIMES = 3


class Ours:
    """Writes and reads one format.

    Args:
        form: a key of ``FORMATS``, or ``LINE``.
        rows: entities.
        folder: for the files.
    """

    def __init__(self, form: str, rows: int, folder: str) -> None:
        self._form, self._rows, self._folder = form, rows, Path(folder)
        self._block = np.random.default_rng(0).normal(scale=0.3, size=(_BLOCK, DIMENSION)).astype(np.float32)

    def write(self) -> int:
        """Write the embeddings; return their rows."""
        if self._form == LINE:
            write_line(self._folder / "m", self._blocks(), replace=True)
        else:
            layout = MatrixLayout(name="m", rows=DIMENSION, end_col=self._rows, format=self._form)
            write_matrix(self._folder, layout, self._blocks(), replace=True)
        return self._rows

    def read(self) -> int:
        """Read them; return their rows."""
        folder = LocalFolder(self._folder / "m")
        blocks = read_line(folder) if self._form == LINE else open_matrix(folder).vectors()
        return sum(len(ids) for ids, _ in blocks)

    def size(self) -> int:
        """Return the bytes of the files."""
        return sum(path.stat().st_size for path in (self._folder / "m").iterdir())

    def _blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, self._rows, _BLOCK):
            yield np.arange(start, start + _BLOCK), self._block


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:
    """Write and read rows in each format."""
    rows = 20_000 if quick else 100_000
    return [found for form in (*FORMATS, LINE) for found in _measured(tools, form, rows)]


def _measured(tools: Tools, form: str, rows: int) -> Iterator[Measurement]:
    with tools.scratch() as folder, tools.ours(f"{__name__}:Ours", form=form, rows=rows, folder=str(folder)) as ours:
        for work in ("write", "read"):
            rounds: list[Round] = [ours(work) for _ in range(_TIMES)]
            rate = statistics.median(map(per_cpu_second, rounds))
            details = {"B": ours("size").value, "peak B": rounds[-1].peak}
            yield Measurement(f"Angel, {work} {form}", "rows/cpu-s", rate, target=_TARGET, details=details)
        shutil.rmtree(folder / "m")
