"""Angel's binary formats: big-endian numbers one after another, without header or padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.angel.records import Format, Records
from pbg_tasks.storage.files import disk_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.formats.angel.records import Span, Style, Types

BLOCK_BYTES = 1 << 22


class BinaryFormat(Format):
    """Format of records as a big-endian machine holds them in memory."""

    def __init__(self, *, by_column: bool = False, has_rows: bool = False, has_columns: bool = True) -> None:
        self.by_column, self.has_rows = by_column, has_rows
        self.has_columns = has_columns

    def decode(self, span: Span, types: Types, style: Style) -> Iterator[Records]:  # noqa: ARG002 (of text)
        """Yield all records of a partition."""
        size = self._size(types)
        count, rest = divmod(span.length, size)
        if rest:
            raise FormatError(f"{span.where}: {span.length} bytes are no whole number of records of {size} bytes")
        if not count:
            return
        record = self._record(types)
        with disk_errors(span.where), span.path.open("rb") as file:
            file.seek(span.offset)
            left, most = count, max(1, BLOCK_BYTES // size)
            while left:
                block = np.fromfile(file, record, min(left, most))
                if not len(block):
                    raise FormatError(f"{span.where}: ends {left} records early")
                left -= len(block)
                yield Records(
                    _native(block["row"]) if self.has_rows else None,
                    _native(block["column"]) if self.has_columns else None,
                    _native(block["value"]),
                )

    def encode(self, records: Records, types: Types, style: Style) -> bytes:  # noqa: ARG002 (of text)
        """Return the bytes of records."""
        block = np.empty(len(records), self._record(types))
        if self.has_rows:
            block["row"] = records.rows
        if self.has_columns:
            block["column"] = records.columns
        block["value"] = records.values
        return block.tobytes()

    def _size(self, types: Types) -> int:
        """Return the bytes of a record.

        They are computed without making a type of that size, because metadata may claim any width.
        """
        row, column = 4 * self.has_rows, types.key.itemsize * self.has_columns
        return row + column + types.value.itemsize * (types.width if self.by_column else 1)

    def _record(self, types: Types) -> np.dtype[np.void]:
        row = [("row", ">i4")] if self.has_rows else []
        column = [("column", types.key.newbyteorder(">"))] if self.has_columns else []
        shape = (types.width,) if self.by_column else ()
        return np.dtype([*row, *column, ("value", types.value.newbyteorder(">"), shape)])


def _native(field: np.ndarray) -> np.ndarray:
    """Return a field in this machine's byte order, contiguous."""
    return np.ascontiguousarray(field.astype(field.dtype.newbyteorder("=")))
