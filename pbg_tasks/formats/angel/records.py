"""Records, the units of a partition's bytes in every format.

A record has a row, a column and one or more values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np

    from pbg_tasks.formats.angel.losses import OnLoss


@dataclass(frozen=True, slots=True)
class Records:
    """Records in the order of the file.

    Attributes:
        rows: int32 (n,); None where the format does not write them.
        columns: int32 or int64 (n,); None where the format does not write them.
        values: (n,), or (n, D) where a record is a column and holds a value of each row.
    """

    rows: np.ndarray | None
    columns: np.ndarray | None
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Types:
    """Types of the parts of a record.

    Attributes:
        key: of columns, int32 or int64.
        value: of values, int32, int64, float32 or float64.
        width: values of a record, D; 0 where a record is one element.
    """

    key: np.dtype[np.signedinteger]
    value: np.dtype[np.generic]
    width: int


@dataclass(frozen=True, slots=True)
class Style:
    """Style of text, which a matrix folder does not record.

    Attributes:
        separator: between the fields of a line (Angel's setting ``text.format.filed.sep``).
        six_decimals: write doubles with row ids as Angel does since 2.3, which loses their further digits.
    """

    separator: str = ","
    six_decimals: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """Place of the bytes of a partition.

    Attributes:
        path: file on the local disk.
        offset: of the first byte.
        length: bytes.
        where: name of the place in errors.
        on_loss: called with each value that Angel wrote so that it cannot be read; None: such values are errors.
    """

    path: Path
    offset: int
    length: int
    where: str
    on_loss: OnLoss | None = None


class Format(ABC):
    """One of Angel's output formats.

    Another package adds one as an entry point of the group ``pbg_tasks.angel_formats``, whose name is that of the Java
    class: a subclass, which is made without arguments, or an instance.

    Attributes:
        by_column: a record is a column of the partition, with the values of all saved rows in ascending order of rows.
            Otherwise it is one element, rows ascending and columns ascending in each.
        has_rows: records hold the row.
        has_columns: records hold the column.
    """

    by_column: bool = False
    has_rows: bool = False
    has_columns: bool = True

    @abstractmethod
    def decode(self, span: Span, types: Types, style: Style) -> Iterator[Records]:
        """Yield all records of a partition in blocks of a few megabytes.

        Raises:
            FormatError: the bytes are no whole records of these types.
        """

    @abstractmethod
    def encode(self, records: Records, types: Types, style: Style) -> bytes:
        """Return the bytes of records."""
