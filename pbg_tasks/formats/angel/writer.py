"""Writing of matrix folders.

Vectors are written block by block, and the elements of a small matrix at once. The file is over 400 lines because rows,
pieces of parts and the folder's metadata follow one layout.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace as changed
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.errors import ConfigError, FormatError
from pbg_tasks.formats.angel.commit import replacing_directory
from pbg_tasks.formats.angel.layout import files, hash_partition, java_map_order, tiles
from pbg_tasks.formats.angel.meta import MatrixFilesMeta, MatrixPartitionMeta, RowPartitionMeta, serialize_meta
from pbg_tasks.formats.angel.records import Records, Types

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from pbg_tasks.formats.angel.layout import MatrixLayout, Tile

    Vectors = Iterable[tuple[np.ndarray, np.ndarray]]

MAX_HELD_NUMBERS = 1 << 27  # numbers that are transposed in memory: at most a few gigabytes

_CHUNK_RECORDS = 1 << 18


def write_matrix(model: Path, layout: MatrixLayout, blocks: Vectors, *, replace: bool = False) -> MatrixFilesMeta:
    """Write a matrix whose columns are entities into a folder.

    The folder has the name of the matrix and appears only when it is whole.

    Args:
        model: directory of the folder.
        layout: of the matrix.
        blocks: columns int64 (n,), ascending from block to block, and values (n, rows); for dense rows all columns.
        replace: whether the folder may be there.

    Returns:
        The metadata that was written.

    Raises:
        FormatError: a block's columns or values do not fit.
        ConfigError: partitions are too large to be transposed in memory.
        ConflictError: the folder is there.
        ResourceError: the disk is full.
    """
    with replacing_directory(model / layout.name, replace=replace) as folder:
        writer = _Writer(folder, layout)
        checked = _checked(blocks, layout)
        if layout.hash_partitions is not None:
            writer.add_hashed(checked)
        elif layout.form.by_column and layout.rows_of_block >= layout.rows:
            writer.add_streamed(checked)
        else:
            writer.add_turned(checked)
        return writer.finish()


def write_range(folder: Path, layout: MatrixLayout, blocks: Vectors, start: int, stop: int) -> list[str]:
    """Write the files of a dense matrix that begin in some columns.

    They have the bytes that ``write_matrix`` gives them.

    Args:
        folder: of the matrix.
        layout: of the whole matrix, whose format is by column.
        blocks: columns int64 (n,) from ``start`` on, each one more than the one before, values (n, rows); read until
            the end of the last file.
        start: first column at which a file may begin.
        stop: column before which the last file begins.

    Returns:
        The names of the files, and last that of the metadata, which has these files only.

    Raises:
        FormatError: columns are missing.
    """
    folder.mkdir(parents=True)
    writer = _Writer(folder, layout)
    names = writer.keep(start, stop)
    end = writer.tiles[-1].end_col if writer.tiles else start
    writer.add_streamed(((ids, _cast(values, layout)) for ids, values in _until(blocks, end)))
    for part in writer.finish().part_metas.values():
        if part.save_col_num != part.end_col - part.start_col:
            raise FormatError(f"matrix {layout.name!r}: some columns before {part.end_col} are missing")
    return [*names, layout.meta_name]


def _until(blocks: Vectors, end: int) -> Vectors:
    """Yield blocks until the column before ``end``, and read no further."""
    place = -1
    for ids, values in blocks:
        yield ids, values
        place = int(ids[-1]) if len(ids) else place
        if place + 1 >= end:
            return


def write_cells(
    model: Path,
    layout: MatrixLayout,
    rows: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    *,
    replace: bool = False,
) -> MatrixFilesMeta:
    """Write a matrix from its elements, all in memory.

    Elements of dense rows and columns that are left out are zero.

    Args:
        model: directory of the matrix's folder.
        layout: of the matrix.
        rows: integers (n,).
        columns: integers (n,).
        values: (n,).
        replace: whether the folder may be there.

    Returns:
        The metadata that was written.

    Raises:
        FormatError: an element is outside the matrix or occurs twice, or values do not fit.
        ConflictError: the folder is there.
        ResourceError: the disk is full.
    """
    rows, columns = rows.astype(np.int64), columns.astype(np.int64)
    values = _cast(values, layout)
    order = np.lexsort((columns, rows))
    rows, columns = rows[order], columns[order]
    values = values[order]
    if ((np.diff(rows) == 0) & (np.diff(columns) == 0)).any():
        raise FormatError(f"matrix {layout.name!r}: an element comes twice")
    if len(rows) and not 0 <= rows[0] <= rows[-1] < layout.rows:
        raise FormatError(f"matrix {layout.name!r}: rows {rows[0]} to {rows[-1]}, and the matrix has {layout.rows}")
    _check_range(columns, layout)
    with replacing_directory(model / layout.name, replace=replace) as folder:
        writer = _Writer(folder, layout)
        for tile in writer.tiles:
            inside = (tile.start_row <= rows) & (rows < tile.end_row)
            if layout.hash_partitions is not None:
                inside &= hash_partition(columns, layout.hash_partitions) == tile.part_id
            else:
                inside &= (tile.start_col <= columns) & (columns < tile.end_col)
            writer.add_cells(tile, rows[inside], columns[inside], values[inside])
        return writer.finish()


class _Writer:
    """Matrix folder that is being written, partition by partition.

    A partition is added at once or in blocks of columns.
    """

    def __init__(self, folder: Path, layout: MatrixLayout) -> None:
        self._folder, self._layout = folder, layout
        self.tiles = tiles(layout)
        groups = files(len(self.tiles), layout.servers, layout.partitions_per_file)
        self._names = {part: str(group[0]) for group in groups for part in group}
        self._types = Types(layout.row_type.key_type, layout.row_type.value_type, 0)
        self._metas: dict[int, MatrixPartitionMeta] = {}

    def keep(self, start: int, stop: int) -> list[str]:
        """Keep the files that begin in some columns; return their names."""
        begins = {self._names[tile.part_id]: tile.start_col for tile in reversed(self.tiles)}
        own = [name for name in reversed(begins) if start <= begins[name] < stop]
        kept = set(own)
        self.tiles = [tile for tile in self.tiles if self._names[tile.part_id] in kept]
        return own

    def add_streamed(self, blocks: Vectors) -> None:
        """Write partitions by column, in the order in which columns arrive."""
        pending = _Pending(blocks)
        for _ in pending.until(self.tiles[0].start_col if self.tiles else 0):
            pass  # columns of a file that begins before
        for tile in self.tiles:
            count, width = 0, tile.end_row - tile.start_row
            with self._opened(tile) as file:
                start = file.tell()
                for columns, values in pending.until(tile.end_col):
                    file.write(self._encode(Records(None, columns, values), width))
                    count += len(columns)
                self._note(tile, start, file.tell(), np.full(width, count), columns=count)

    def add_turned(self, blocks: Vectors) -> None:
        """Write partitions of some columns, each when all its columns are there."""
        layout = self._layout
        if layout.row_type.dense:
            _check_held(layout.rows * layout.columns_of_block, layout)
        pending = _Pending(blocks)
        by_columns: dict[int, list[Tile]] = {}
        for tile in self.tiles:
            by_columns.setdefault(tile.end_col, []).append(tile)
        for end, group in by_columns.items():
            columns, values = _joined(pending.until(end), layout)
            for tile in group:
                self._add_vectors(tile, columns, values[:, tile.start_row : tile.end_row])

    def add_hashed(self, blocks: Vectors) -> None:
        """Write partitions of columns whose hashes are equal."""
        columns, values = _joined(blocks, self._layout)
        part = hash_partition(columns, len(self.tiles))
        for tile in self.tiles:
            self._add_vectors(tile, columns[part == tile.part_id], values[part == tile.part_id])

    def add_cells(self, tile: Tile, rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> None:
        """Write a partition from its elements, in order of rows and columns."""
        if not (self._layout.row_type.dense or self._layout.form.by_column):
            self._add_rows(tile, rows, columns, values)
            return
        dense = self._layout.row_type.dense
        counts = None if dense else np.bincount(rows - tile.start_row, minlength=tile.end_row - tile.start_row)
        every = np.arange(tile.start_col, tile.end_col) if dense else np.unique(columns)
        table = np.zeros((len(every), tile.end_row - tile.start_row), values.dtype)
        table[np.searchsorted(every, columns), rows - tile.start_row] = values
        self._add_vectors(tile, every, table, counts)

    def finish(self) -> MatrixFilesMeta:
        """Write the metadata, last."""
        layout = self._layout
        hashed = layout.hash_partitions is not None
        start, end = _index_range(layout)
        options = {"feature.index.range.start": str(start), "feature.index.range.end": str(end), **layout.options}
        meta = MatrixFilesMeta(
            matrix_id=layout.matrix_id,
            matrix_name=layout.name,
            format_class_name=layout.class_name,
            row_type=int(layout.row_type),
            row=layout.rows,
            col=_signed(end - start),
            block_row=-1 if hashed else layout.rows_of_block,
            block_col=-1 if hashed else layout.columns_of_block,
            options={key: options[key] for key in java_map_order(list(options))},
            part_metas=dict(sorted(self._metas.items())),
        )
        (self._folder / layout.meta_name).write_bytes(serialize_meta(meta))
        return meta

    def _add_vectors(
        self, tile: Tile, columns: np.ndarray, values: np.ndarray, counts: np.ndarray | None = None
    ) -> None:
        """Write a partition from the vectors of its columns.

        Args:
            tile: the partition.
            columns: int64 (n,).
            values: (n, rows).
            counts: number of elements of each row; None where each has all columns.
        """
        if self._layout.form.by_column:
            width = tile.end_row - tile.start_row
            with self._opened(tile) as file:
                start = file.tell()
                if len(columns):
                    file.write(self._encode(Records(None, columns, values), width))
                elements = np.full(width, len(columns)) if counts is None else counts
                self._note(tile, start, file.tell(), elements, columns=len(columns))
            return
        rows = np.arange(tile.start_row, tile.end_row)
        turned = np.ascontiguousarray(values.T).reshape(-1)
        self._add_rows(tile, np.repeat(rows, len(columns)), np.tile(columns, len(rows)), turned)

    def _add_rows(self, tile: Tile, rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> None:
        form = self._layout.form
        with self._opened(tile) as file:
            start = file.tell()
            for first in range(0, len(rows), _CHUNK_RECORDS):
                chunk = slice(first, first + _CHUNK_RECORDS)
                records = Records(
                    rows[chunk].astype(np.int32) if form.has_rows else None,
                    columns[chunk] if form.has_columns else None,
                    values[chunk],
                )
                file.write(self._encode(records, 0))
            counts = np.bincount(rows - tile.start_row, minlength=tile.end_row - tile.start_row)
            self._note(tile, start, file.tell(), counts, columns=None)

    def _encode(self, records: Records, width: int) -> bytes:
        return self._layout.form.encode(records, changed(self._types, width=width), self._layout.style)

    def _note(self, tile: Tile, start: int, end: int, counts: np.ndarray, *, columns: int | None) -> None:
        """Record a partition's metadata.

        Args:
            tile: the partition.
            start: first byte in its file.
            end: byte after the last.
            counts: number of elements of each row.
            columns: number of columns saved, in a format by column; else None.
        """
        offset = start if columns is None else -1
        elements = counts.tolist()
        rows = range(tile.start_row, tile.end_row)
        self._metas[tile.part_id] = MatrixPartitionMeta(
            part_id=tile.part_id,
            start_row=tile.start_row,
            end_row=tile.end_row,
            start_col=tile.start_col,
            end_col=tile.end_col,
            nnz=sum(elements),
            save_row_num=len(rows) if columns is None else 0,
            save_col_num=columns or 0,
            save_col_elem_num=0 if columns is None else len(rows),
            file_name=self._names[tile.part_id],
            offset=start,
            length=end - start,
            row_metas={row: RowPartitionMeta(row, offset, count) for row, count in zip(rows, elements, strict=True)},
        )

    @contextmanager
    def _opened(self, tile: Tile) -> Iterator[BinaryIO]:
        with (self._folder / self._names[tile.part_id]).open("ab") as file:
            yield file


class _Pending:
    """Blocks of columns, cut at the ends of partitions."""

    def __init__(self, blocks: Vectors) -> None:
        self._blocks = iter(blocks)
        self._rest: tuple[np.ndarray, np.ndarray] | None = next(self._blocks, None)

    def until(self, end: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the remaining columns below ``end``."""
        while self._rest is not None:
            columns, values = self._rest
            cut = int(np.searchsorted(columns, end))
            if cut:
                yield columns[:cut], values[:cut]
            if cut < len(columns):
                self._rest = columns[cut:], values[cut:]
                return
            self._rest = next(self._blocks, None)


def _checked(blocks: Vectors, layout: MatrixLayout) -> Vectors:
    """Yield blocks after checking that they fit.

    They must fit the matrix and one another.

    Raises:
        FormatError: a block does not fit.
    """
    last, count = None, 0
    for columns, values in blocks:
        ids = np.asarray(columns).astype(np.int64)
        if values.shape != (len(ids), layout.rows):
            raise FormatError(
                f"matrix {layout.name!r}: values of shape {values.shape} for {len(ids)} columns of {layout.rows} rows"
            )
        if not len(ids):
            continue
        if (ids[1:] <= ids[:-1]).any() or (last is not None and ids[0] <= last):
            raise FormatError(f"matrix {layout.name!r}: columns {ids[0]} to {ids[-1]} do not ascend, or come twice")
        _check_range(ids, layout)
        if layout.row_type.dense and ids[-1] - layout.start_col != count + len(ids) - 1:
            raise FormatError(
                f"matrix {layout.name!r}: dense rows hold every column, and one up to {ids[-1]} is missing"
            )
        last, count = int(ids[-1]), count + len(ids)
        yield ids, _cast(values, layout)
    if layout.row_type.dense and count != layout.end_col - layout.start_col:
        raise FormatError(
            f"matrix {layout.name!r}: dense rows hold every column, and {count} of "
            f"{layout.end_col - layout.start_col} came"
        )


def _check_range(columns: np.ndarray, layout: MatrixLayout) -> None:
    start, end = _index_range(layout)
    if len(columns) and not start <= columns.min() <= columns.max() < end:
        raise FormatError(
            f"matrix {layout.name!r}: columns {columns.min()} to {columns.max()}, outside {start} to {end - 1}"
        )


def _cast(values: np.ndarray, layout: MatrixLayout) -> np.ndarray:
    kind = layout.row_type.value_type
    if not np.can_cast(values.dtype, kind, "safe"):
        raise FormatError(f"matrix {layout.name!r}: {layout.row_type.name} cannot hold every {values.dtype}")
    return values.astype(kind, copy=False)


def _joined(blocks: Vectors, layout: MatrixLayout) -> tuple[np.ndarray, np.ndarray]:
    """Return blocks as one.

    Raises:
        ConfigError: they are too large for that.
    """
    held, numbers = [(np.empty(0, np.int64), np.empty((0, layout.rows), layout.row_type.value_type))], 0
    for columns, values in blocks:
        numbers += values.size
        _check_held(numbers, layout)
        held.append((columns, values))
    all_columns, all_values = zip(*held, strict=True)
    return np.concatenate(all_columns), np.concatenate(all_values)


def _check_held(numbers: int, layout: MatrixLayout) -> None:
    if numbers > MAX_HELD_NUMBERS:
        raise ConfigError(
            f"matrix {layout.name!r}: a partition of {numbers} numbers or more is turned or hashed in memory, which "
            f"holds {MAX_HELD_NUMBERS}; make block_col smaller, or write ranges instead of hashes"
        )


def _index_range(layout: MatrixLayout) -> tuple[int, int]:
    """Return the range of columns that a matrix can have.

    A hashed matrix can have any column but the last of its type.
    """
    if layout.hash_partitions is None:
        return layout.start_col, layout.end_col
    limits = np.iinfo(layout.row_type.key_type)
    return int(limits.min), int(limits.max)


def _signed(number: int) -> int:
    """Return a number as a Java long holds it, wrapped around."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
