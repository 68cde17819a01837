"""Assembly of vectors from the partitions of a matrix.

Partitions are read one after another where their format keeps the values of a vector together; otherwise they are
transposed by way of a file on the disk.
"""

from __future__ import annotations

import os
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Self

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.storage.files import disk_errors, write_all
from pbg_tasks.storage.staging import Scratch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.formats.angel.partition import Cells, Partition

BLOCK_NUMBERS = 1 << 20  # numbers in a block of vectors
MAX_DIMENSION = 1 << 20


def column_vectors(
    partitions: list[Partition], kind: np.dtype[np.generic], *, by_column: bool, dense: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield columns int64 (n,) with their values of all rows (n, D).

    Args:
        partitions: of one matrix.
        kind: type of the values.
        by_column: whether the format keeps a column's values together.
        dense: whether rows hold every column.

    Raises:
        FormatError: the partitions form no grid, or one is damaged.
        ResourceError: no scratch space.
    """
    groups = _column_groups(partitions)
    rows = _rows_of(groups[0]) if groups else np.empty(0, np.int32)
    for group in groups:
        if not np.array_equal(_rows_of(group), rows):
            raise FormatError(
                f"{group[0].where}: holds other rows than {groups[0][0].where}: its columns are no vectors"
            )
        if by_column and len(group) == 1:
            yield from _ascending(group[0])
            continue
        columns = _dense_columns(group) if dense else _stored_columns(group)
        with _Table(len(rows), len(columns), kind) as table:
            _fill(table, group, rows, columns)
            step = max(1, BLOCK_NUMBERS // max(len(rows), 1))
            for start in range(0, len(columns), step):
                stop = min(start + step, len(columns))
                yield columns[start:stop], table.columns(start, stop)


def row_vectors(partitions: list[Partition], kind: np.dtype[np.generic]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows int64 (n,) with their values of all columns (n, D).

    Args:
        partitions: of one matrix.
        kind: type of the values.

    Raises:
        FormatError: the columns are hashed or more than 1,048,576, or a partition is damaged.
        ResourceError: no scratch space.
    """
    first = min((item.meta.start_col for item in partitions), default=0)
    last = max((item.meta.end_col for item in partitions), default=0)
    if partitions and not 0 < last - first <= MAX_DIMENSION:
        raise FormatError(f"{partitions[0].where}: rows of hashed or {last - first} columns are no vectors")
    groups = defaultdict(list)
    for item in partitions:
        groups[item.meta.start_row, item.meta.end_row].append(item)
    _check_disjoint(groups, "rows", partitions)
    for _, group in sorted(groups.items()):
        _check_disjoint({(item.meta.start_col, item.meta.end_col): [item] for item in group}, "columns", group)
        rows, columns = _rows_of(group), np.arange(first, last)
        with _Table(len(rows), len(columns), kind) as table:
            _fill(table, group, rows, columns)
            step = max(1, BLOCK_NUMBERS // len(columns))
            for start in range(0, len(rows), step):
                stop = min(start + step, len(rows))
                yield rows[start:stop].astype(np.int64), table.rows(start, stop)


def _column_groups(partitions: list[Partition]) -> list[list[Partition]]:
    """Group the partitions with equal columns, in the order of the files.

    Each hashed partition is a group of its own.
    """
    groups: dict[tuple[int, int], list[Partition]] = {}
    hashed = []
    for item in partitions:
        if item.meta.start_col == item.meta.end_col:
            hashed.append([item])
        else:
            groups.setdefault((item.meta.start_col, item.meta.end_col), []).append(item)
    _check_disjoint(groups, "columns", partitions)
    for group in groups.values():
        _check_disjoint({(item.meta.start_row, item.meta.end_row): [item] for item in group}, "rows", group)
    return [*groups.values(), *hashed]


def _check_disjoint(ranges: dict[tuple[int, int], list[Partition]], what: str, partitions: list[Partition]) -> None:
    for (start, end), (after, _) in pairwise(sorted(ranges)):
        if after < end:
            raise FormatError(
                f"{partitions[0].where}: the partitions of this matrix overlap ({what} {start} to {end - 1} and from "
                f"{after} on) and form no grid"
            )


def _rows_of(group: list[Partition]) -> np.ndarray:
    return np.unique(np.concatenate([item.row_ids for item in group]))


def _dense_columns(group: list[Partition]) -> np.ndarray:
    meta = group[0].meta
    return np.arange(meta.start_col, meta.end_col) if any(item.records for item in group) else np.empty(0, np.int64)


def _stored_columns(group: list[Partition]) -> np.ndarray:
    """Return the columns that any row of a group holds, ascending."""
    found = np.empty(0, np.int64)
    for item in group:
        for cells in item.cells():
            found = np.union1d(found, cells.columns)
    return found


def _ascending(partition: Partition) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield a partition's vectors, checking that columns ascend.

    As they ascend, no column occurs twice.
    """
    before = np.empty(0, np.int64)
    for columns, values in partition.vectors():
        _check_ascending(np.concatenate((before, columns)), partition)
        before = columns[-1:]
        yield columns, values


def _fill(table: _Table, group: list[Partition], rows: np.ndarray, columns: np.ndarray) -> None:
    for item in group:
        last = np.full(len(rows), -1)
        for cells in item.cells():
            _write(table, cells, rows, columns, last, item)


def _write(
    table: _Table, cells: Cells, rows: np.ndarray, columns: np.ndarray, last: np.ndarray, partition: Partition
) -> None:
    """Write elements to the table, a row at a time.

    Args:
        table: of all rows and columns of the group.
        cells: the elements.
        rows: of the table, ascending.
        columns: of the table, ascending.
        last: position of the last element of each row that was written; updated here.
        partition: of the elements, for errors.
    """
    order = slice(None) if (np.diff(cells.rows) >= 0).all() else np.argsort(cells.rows, kind="stable")
    index = np.searchsorted(rows, cells.rows[order])
    place = _places(columns, cells.columns[order])
    values = cells.values[order]
    bounds = np.flatnonzero(np.diff(index, prepend=-1, append=-1))
    for start, stop in pairwise(bounds.tolist()):
        row, places = int(index[start]), place[start:stop]
        _check_ascending(np.concatenate((last[row : row + 1], places)), partition)
        last[row] = places[-1]
        run = np.zeros(places[-1] - places[0] + 1, values.dtype)
        run[places - places[0]] = values[start:stop]
        table.write(row, int(places[0]), run)


def _places(columns: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the positions of columns among all of a group."""
    gapless = len(columns) > 0 and columns[-1] - columns[0] == len(columns) - 1
    return wanted - columns[0] if gapless else np.searchsorted(columns, wanted)


def _check_ascending(numbers: np.ndarray, partition: Partition) -> None:
    if (numbers[1:] <= numbers[:-1]).any():  # not by np.diff, which could overflow
        raise FormatError(
            f"{partition.where}: columns do not ascend as Angel writes them: one comes twice or out of order"
        )


class _Table:
    """Values (rows, columns) in a scratch file, zero until written.

    It is written by rows and read by columns, or the other way round. The file is removed when the ``with`` block ends.

    Raises:
        ResourceError: the disk has no room for it.
    """

    def __init__(self, rows: int, columns: int, kind: np.dtype[np.generic]) -> None:
        self._rows, self._columns = rows, columns
        self._kind = kind
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
        data, size = b"", count * self._kind.itemsize
        offset = self._offset(row, column)
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

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
        self._scratch.__exit__()
