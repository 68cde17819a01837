"""Reading of one partition of a matrix, checked against its metadata.

Its records are read as elements or as vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.angel.losses import rounded_loss, zeros_loss
from pbg_tasks.formats.angel.records import Span, Types
from pbg_tasks.formats.angel.text import line_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.formats.angel.folder import Folder
    from pbg_tasks.formats.angel.losses import OnLoss
    from pbg_tasks.formats.angel.meta import MatrixPartitionMeta
    from pbg_tasks.formats.angel.records import Format, Records, Style
    from pbg_tasks.formats.angel.row_types import RowType

_SAMPLE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Cells:
    """Elements of a matrix.

    Attributes:
        rows: int32 (n,).
        columns: int64 (n,).
        values: (n,) of the matrix's type.
    """

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, slots=True)
class Reading:
    """Parameters for reading a matrix's partitions.

    Attributes:
        folder: of the matrix.
        form: its format.
        row_type: of its rows.
        style: of its text.
        on_loss: called with each loss that Angel caused.
        may_be_rounded: whether Angel may have written six decimals of each value.
    """

    folder: Folder
    form: Format
    row_type: RowType
    style: Style
    on_loss: OnLoss
    may_be_rounded: bool


class Partition:
    """Partition that is open for reading.

    Args:
        meta: of the partition.
        reading: of the matrix.

    Attributes:
        meta: of the partition.
        row_ids: int32, the rows it holds, ascending.

    Raises:
        FormatError: metadata contradicts itself, or claims more records than the bytes can hold.
    """

    def __init__(self, meta: MatrixPartitionMeta, reading: Reading) -> None:
        form, dense = reading.form, reading.row_type.dense
        self.meta, self._reading = meta, reading
        self._types = Types(
            reading.row_type.key_type, reading.row_type.value_type, meta.save_col_elem_num if form.by_column else 0
        )
        self.where = f"{reading.folder.where}/{meta.file_name}: partition {meta.part_id}"
        self.row_ids = np.array(meta.row_ids, np.int32)
        counts = [meta.row_metas[row].element_num for row in meta.row_ids]
        self.records = meta.save_col_num if form.by_column else sum(counts)
        if form.by_column and self.records and self._types.width != len(counts):
            raise FormatError(f"{self.where}: columns of {self._types.width} values, and {len(counts)} rows were saved")
        if self.records and not counts:
            raise FormatError(f"{self.where}: {self.records} columns of no rows")
        if self.records * max(self._types.width, 1) > meta.length:
            raise FormatError(
                f"{self.where}: {meta.length} bytes cannot hold the {self.records} records of its metadata"
            )
        sizes = {self.records} if form.by_column else set(counts)
        if dense and sizes - {0, meta.end_col - meta.start_col}:
            raise FormatError(
                f"{self.where}: dense rows of {sorted(sizes)[:3]} elements, and columns {meta.start_col} to "
                f"{meta.end_col - 1}"
            )
        self._counts = np.array(counts, np.int64)
        self._ends = np.cumsum(self._counts)

    def cells(self) -> Iterator[Cells]:
        """Yield the partition's elements in the order of its bytes, in blocks.

        Raises:
            FormatError: its bytes are damaged or do not fit the metadata.
        """
        if self._reading.form.by_column:
            for columns, values in self.vectors():
                rows = np.tile(self.row_ids, len(columns))
                yield Cells(rows, np.repeat(columns, len(self.row_ids)), values.reshape(-1))
            return
        found = np.zeros(len(self.row_ids), np.int64)
        for start, records in self._blocks():
            place = np.arange(start, start + len(records))
            index = np.searchsorted(self._ends, place, side="right")
            columns = self._columns(records, place - (self._ends - self._counts)[index])
            if records.rows is not None:
                index = self._row_index(records.rows)
            found += np.bincount(index, minlength=len(found))
            yield Cells(self.row_ids[index], columns, records.values)
        if (found != self._counts).any():
            row = int(np.flatnonzero(found != self._counts)[0])
            raise FormatError(
                f"{self.where}: row {self.row_ids[row]} has {found[row]} elements, metadata says {self._counts[row]}"
            )

    def vectors(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield columns int64 (n,) and their values (n, D).

        The format must be one by column. Rows ascend within a column.

        Raises:
            FormatError: its bytes are damaged or do not fit the metadata.
        """
        nonzero = np.zeros(len(self.row_ids), np.int64)
        for _, records in self._blocks():
            if not self._reading.row_type.dense:
                nonzero += (records.values != 0).sum(axis=0)
            yield self._columns(records, None), records.values
        if not self._reading.row_type.dense:
            self._report_zeros(nonzero)

    def span(self) -> Span:
        """Return the present place of the partition's bytes."""
        path = self._reading.folder.local(self.meta.file_name)
        return Span(path, self.meta.offset, self.meta.length, self.where, self._reading.on_loss)

    def check_decimals(self) -> None:
        """Report a loss if doubles look rounded to six decimals.

        That is judged by the first lines.
        """
        if not self._reading.may_be_rounded:
            return
        span = self.span()
        sample = Span(span.path, span.offset, min(span.length, _SAMPLE_BYTES), span.where)
        lines = b"".join(line_blocks(sample)).decode("latin-1")
        whole = lines if span.length <= _SAMPLE_BYTES else lines.rpartition("\n")[0]
        if loss := rounded_loss(whole, self._reading.style.separator, self._reading.folder.where):
            self._reading.on_loss(loss)

    def _blocks(self) -> Iterator[tuple[int, Records]]:
        """Yield blocks of records, each with the number of its first record.

        Their number is compared with the metadata.
        """
        if not self.records:
            if self.meta.length:
                raise FormatError(f"{self.where}: {self.meta.length} bytes, and no records by its metadata")
            return
        self.check_decimals()
        done, span = 0, self.span()
        for records in self._reading.form.decode(span, self._types, self._reading.style):
            if done + len(records) > self.records:
                raise FormatError(f"{self.where}: holds more than the {self.records} records of its metadata")
            yield done, records
            done += len(records)
        if done != self.records:
            raise FormatError(f"{self.where}: holds {done} records, its metadata says {self.records}")

    def _columns(self, records: Records, within_row: np.ndarray | None) -> np.ndarray:
        """Return the records' columns.

        Columns that are not stored follow from the position in the row.
        """
        start, end = self.meta.start_col, self.meta.end_col
        if records.columns is None:
            return np.asarray(within_row) + start
        columns = records.columns.astype(np.int64, copy=False)
        if start < end and len(columns) and not (start <= columns.min() and columns.max() < end):
            raise FormatError(
                f"{self.where}: holds columns {columns.min()} to {columns.max()}, outside {start} to {end - 1}"
            )
        return columns

    def _row_index(self, rows: np.ndarray) -> np.ndarray:
        index = np.searchsorted(self.row_ids, rows).clip(max=len(self.row_ids) - 1)
        if (self.row_ids[index] != rows).any():
            row = rows[self.row_ids[index] != rows][0]
            raise FormatError(f"{self.where}: holds row {row}, which its metadata does not have")
        return index

    def _report_zeros(self, nonzero: np.ndarray) -> None:
        for row, elements, values in zip(self.row_ids[1:], self._counts[1:], nonzero[1:], strict=True):
            if values < elements:
                self._reading.on_loss(zeros_loss(int(row), int(elements), int(values), self.where))
                return
