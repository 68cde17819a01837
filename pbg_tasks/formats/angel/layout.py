"""Partition of a matrix into blocks and files, by Angel's rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from pbg_tasks.errors import ConfigError
from pbg_tasks.formats.angel.formats import class_name, output_format
from pbg_tasks.formats.angel.meta import META_NAMES
from pbg_tasks.formats.angel.records import Format, Style
from pbg_tasks.formats.angel.row_types import RowType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PARTITION_NUMBERS = 500_000  # Angel's default for the size of a partition
MAX_PARTITIONS = 10_000  # Angel's limit
_MIN_COLUMNS = 100


@dataclass(frozen=True, slots=True)
class Tile:
    """Place of a partition: half-open ranges of rows and columns.

    A hashed partition has columns from 0 to 0.
    """

    part_id: int
    start_row: int
    end_row: int
    start_col: int
    end_col: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixLayout:
    """Description of a matrix to write.

    Attributes:
        name: of the matrix and its folder.
        rows: their number: the dimension, where a column is an entity.
        end_col: one more than the largest column; not for hashed ones.
        start_col: the smallest column.
        row_type: of all rows; dense ones hold every column.
        format: Java class; those of Angel's own package may be named without it.
        block_row: rows of a partition; None for all, since servers of Angel read rows of several row blocks in a wrong
            order.
        block_col: columns of a partition; None for Angel's own choice.
        hash_partitions: number of partitions over which columns are spread by their hash, in place of blocks; for
            sparse rows, by row.
        servers: number of servers; a file holds partitions of one server only.
        partitions_per_file: at most.
        style: of text.
        options: attributes of the matrix.
        matrix_id: its number.
        meta_name: ``_meta`` for Angel 3.2 and later, ``meta`` for those before.
    """

    name: str
    rows: int
    end_col: int = 0
    start_col: int = 0
    row_type: RowType = RowType.T_FLOAT_DENSE
    format: str = "BinaryColumnFormat"
    block_row: int | None = None
    block_col: int | None = None
    hash_partitions: int | None = None
    servers: int = 1
    partitions_per_file: int = 5
    style: Style = field(default_factory=Style)
    options: Mapping[str, str] = field(default_factory=dict)
    matrix_id: int = 0
    meta_name: Literal["_meta", "meta"] = "_meta"

    def __post_init__(self) -> None:
        if not self.row_type.numeric or not self.row_type.storable:
            raise ConfigError(f"matrix {self.name!r}: no server stores numbers as {self.row_type.name}")
        if not self.form.has_columns and not self.row_type.dense:
            raise ConfigError(f"matrix {self.name!r}: {self.format} drops the column numbers of sparse rows")
        limit = np.iinfo(self.row_type.key_type).max
        if not (self.hash_partitions or -limit - 1 <= self.start_col <= self.end_col <= limit):
            raise ConfigError(
                f"matrix {self.name!r}: columns {self.start_col} to {self.end_col} are none or exceed "
                f"{8 * self.row_type.key_type.itemsize} bits; sparse LONGKEY rows have columns of 64 bits"
            )
        if self.hash_partitions is not None and (self.row_type.dense or self.form.by_column):
            raise ConfigError(f"matrix {self.name!r}: Angel hashes sparse rows only, and loses them in column formats")
        counts = (
            self.rows,
            self.servers,
            self.partitions_per_file,
            self.block_row,
            self.block_col,
            self.hash_partitions,
        )
        if any(count is not None and count < 1 for count in counts) or self.meta_name not in META_NAMES:
            raise ConfigError(f"matrix {self.name!r}: rows, blocks, servers and partitions are counted from 1")
        if not self.name or self.name.startswith((".", "_")) or "/" in self.name or "\0" in self.name:
            raise ConfigError(
                f"matrix name {self.name!r}: it names a folder, which / . and _ in front would hide or move"
            )

    @property
    def form(self) -> Format:
        """Format of the matrix."""
        return output_format(self.format)

    @property
    def class_name(self) -> str:
        """Full name of the format's class."""
        return class_name(self.format)

    @property
    def rows_of_block(self) -> int:
        """Number of rows of a partition."""
        return self.block_row or self.rows

    @property
    def columns_of_block(self) -> int:
        """Number of columns of a partition, by default as Angel chooses it."""
        columns = self.end_col - self.start_col
        most = max(PARTITION_NUMBERS // self.rows_of_block, self.rows * columns // MAX_PARTITIONS // self.rows_of_block)
        return self.block_col or max(1, min(max(_MIN_COLUMNS, columns // self.servers), most))


def tiles(layout: MatrixLayout) -> list[Tile]:
    """Return the partitions by their ids.

    First come all columns of the first rows, then those of the next rows.
    """
    if layout.hash_partitions is not None:
        return [Tile(part, 0, layout.rows, 0, 0) for part in range(layout.hash_partitions)]
    step_row, step_col = layout.rows_of_block, layout.columns_of_block
    blocks = [
        (row, min(row + step_row, layout.rows), column, min(column + step_col, layout.end_col))
        for row in range(0, layout.rows, step_row)
        for column in range(layout.start_col, layout.end_col, step_col)
    ]
    return [Tile(part, *block) for part, block in enumerate(blocks)]


def files(partitions: int, servers: int, per_file: int) -> list[list[int]]:
    """Return the partitions of each file, which is named after the first.

    A server halves the list of its partitions until each part is small enough for a file.
    """
    return [group for server in range(servers) for group in _halved(range(server, partitions, servers), per_file)]


def _halved(parts: Sequence[int], most: int) -> list[list[int]]:
    if len(parts) <= most:
        return [list(parts)] if parts else []
    middle = len(parts) // 2
    return _halved(parts[:middle], most) + _halved(parts[middle:], most)


def hash_partition(columns: np.ndarray, partitions: int) -> np.ndarray:
    """Return the partition of each column, by its hash.

    Args:
        columns: int64 (n,).
        partitions: number of partitions.
    """
    number = np.abs(columns.astype(np.int32).astype(np.int64)).astype(np.uint32)
    mixed = (number ^ (number >> 16)).astype(np.int64)
    return mixed & (partitions - 1) if partitions & (partitions - 1) == 0 else mixed % partitions


def java_map_order(keys: Sequence[str]) -> list[str]:
    """Return keys in the order of a ``java.util.HashMap``.

    The order is that of a map into which the keys were put one after another.
    """
    size = 16
    while len(keys) > size * 3 // 4:
        size *= 2
    return sorted(keys, key=lambda key: _java_hash(key) & (size - 1))


def _java_hash(text: str) -> int:
    units = text.encode("utf-16-be")
    number = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        number = (31 * number + (high << 8 | low)) & 0xFFFFFFFF
    return number ^ number >> 16
