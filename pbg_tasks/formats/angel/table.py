"""Table on the local disk, which transposes a block of a matrix.

It is written by rows and read by columns, or the other way round.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

import numpy as np

from pbg_tasks.storage.files import disk_errors, write_all
from pbg_tasks.storage.staging import Scratch

if TYPE_CHECKING:
    from types import TracebackType


class Table:
    """Values (rows, columns) in a scratch file, zero until written.

    The file is removed when the ``with`` block ends.

    Args:
        rows: their number.
        columns: their number.
        kind: of the values.

    Raises:
        ResourceError: the disk has no room for it.
    """

    def __init__(self, rows: int, columns: int, kind: np.dtype[np.generic]) -> None:
        self._rows, self._columns, self._kind = rows, columns, kind
        self._scratch = Scratch()

    def write(self, row: int, column: int, values: np.ndarray) -> None:
        """Write values (n,) into a row, from a column on."""
        write_all(self._file, values.tobytes(), self._offset(row, column))

    def columns(self, start: int, stop: int) -> np.ndarray:
        """Return columns as vectors (stop - start, rows)."""
        found = np.empty((stop - start, self._rows), self._kind)
        for row in range(self._rows):
            found[:, row] = self._read(row, start, stop - start)
        return found

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows (stop - start, columns)."""
        return self._read(start, 0, (stop - start) * self._columns).reshape(stop - start, self._columns)

    def _offset(self, row: int, column: int) -> int:
        return (row * self._columns + column) * self._kind.itemsize

    def _read(self, row: int, column: int, count: int) -> np.ndarray:
        data, size, offset = b"", count * self._kind.itemsize, self._offset(row, column)
        while len(data) < size:  # one system call may read less than requested
            data += os.pread(self._file, size - len(data), offset + len(data))
        return np.frombuffer(data, self._kind)

    def __enter__(self) -> Self:
        scratch = self._scratch.__enter__()
        size = self._offset(self._rows, 0)
        scratch.require(size)
        path = scratch.path / "table"
        with disk_errors(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.truncate(self._file, size)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)
        self._scratch.__exit__(kind, error, trace)
