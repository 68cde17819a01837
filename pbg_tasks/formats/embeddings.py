"""Embeddings of one partition: ``embeddings_{type}_{part}.v{N}.h5`` (PBG's checkpoint format)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.files import creating
from pbg_tasks.formats.guard import dataset, open_foreign
from pbg_tasks.formats.memory import empty_rows
from pbg_tasks.formats.metadata import IterationInfo, write_metadata
from pbg_tasks.formats.names import embeddings_file_name as embeddings_file_name  # noqa: PLC0414 - for users of this module
from pbg_tasks.formats.optimizer import PLAIN_SUMS, read_row_sums, row_adagrad_state, write_state
from pbg_tasks.formats.slices import read_into, write_dataset

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.formats.guard import OpenFile
    from pbg_tasks.formats.stored import Stored
    from pbg_tasks.storage.vouched import Identity

__all__ = [
    "IterationInfo",
    "embeddings_file_name",
    "embeddings_shape",
    "iter_blocks",
    "iter_rows",
    "map_embeddings",
    "read_embeddings",
    "read_sums",
    "write_embeddings",
]

_MOST_FINITE = 1 << 16
_finite: set[Identity] = set()


def write_embeddings(
    path: Path,
    embeddings: np.ndarray,
    row_sums: np.ndarray | None,
    *,
    lr: float,
    iteration: IterationInfo,
    config: ConfigSchema,
) -> None:
    """Write a partition; equal arguments give equal bytes.

    Args:
        path: of the file.
        embeddings: float32 (n, d), or uint16: the bits of bfloat16, which are written as float32.
        row_sums: RowAdagrad's sums, float32 (n,); None leaves the optimizer out.
        lr: learning rate, for the optimizer's state.
        iteration: for the attributes.
        config: same.

    Raises:
        ResourceError: the disk is full; a file that was at ``path`` stays.
    """
    if row_sums is not None and row_sums.shape != embeddings.shape[:1]:
        raise ValueError(f"{path}: row sums of shape {row_sums.shape} for embeddings of shape {embeddings.shape}")
    data_bytes = embeddings.size * 4 + (0 if row_sums is None else row_sums.size * 8)
    with creating(path, data_bytes=data_bytes) as file:
        write_metadata(file, config, iteration)
        write_dataset(file, "embeddings", embeddings, dtype=np.float32, checksums=config.checksums, convert=_as_float32)
        if row_sums is not None:
            write_state(file, row_adagrad_state(row_sums, lr))
            write_dataset(file, PLAIN_SUMS, row_sums, dtype=np.float32, checksums=config.checksums)


def _as_float32(rows_ND: np.ndarray) -> np.ndarray:
    """Return float32 as it is, and the bits of bfloat16 as float32."""
    if rows_ND.dtype != np.uint16:
        return rows_ND
    wide_ND = rows_ND.astype(np.uint32)
    wide_ND <<= 16
    return wide_ND.view(np.float32)


def read_embeddings(
    path: Path, *, count: int | None = None, dimension: int | None = None, out: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Read a partition of any float type, layout and compression.

    Args:
        path: its file.
        count: rows it must have, None for any.
        dimension: columns it must have, None for any.
        out: float32 (m, d) with m >= n to read into. For a partition that has grown, the rows after the first n stay as
            they are.

    Returns:
        Embeddings float32 (n, d), the first rows of ``out`` where that is given; and RowAdagrad's sums float32 (n,), or
        None when the file has none.

    Raises:
        FormatError: damaged, not PBG's, of another shape, larger than ``out``, or not finite.
    """
    with open_foreign(path) as file:
        item = _embeddings(file, count, dimension if out is None else out.shape[1])
        rows, columns = item.shape
        if out is not None and rows > len(out):
            raise FormatError(f"{path}: holds {rows} rows, more than the {len(out)} entities of the partition")
        embeddings = empty_rows(rows, columns) if out is None else out[:rows]
        _read_into(item, 0, embeddings)
        return embeddings, read_row_sums(file, rows)


def embeddings_shape(path: Path) -> tuple[int, int]:
    """Return (n, d) of a partition's file.

    Raises:
        FormatError: damaged or not PBG's.
    """
    with open_foreign(path) as file:
        rows, columns = _embeddings(file, None, None).shape
        return rows, columns


def read_sums(path: Path) -> np.ndarray | None:
    """Read RowAdagrad's sums of a partition.

    They are float32 (n,), or None when the file has none.

    Raises:
        FormatError: damaged, not PBG's, or the sums are not finite.
    """
    with open_foreign(path) as file:
        return read_row_sums(file, len(_embeddings(file, None, None)))


def iter_blocks(
    path: Path, rows: int, *, count: int | None = None, dimension: int | None = None
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the rows of a partition in blocks.

    A block is (offset of the first row, float32 (<= ``rows``, d)). A vouched file whose rows were all found finite is
    not examined again: an evaluation reads each a dozen times.

    Raises:
        FormatError: damaged, not PBG's, not finite or of another shape.
    """
    with open_foreign(path) as file:
        item = _embeddings(file, count, dimension)
        read = _read_again if file.vouched in _finite else _read_into
        for start in range(0, len(item), rows):
            block = np.empty((min(rows, len(item) - start), item.shape[1]), np.float32)
            read(item, start, block)
            yield start, block
        if file.vouched is not None and len(_finite) < _MOST_FINITE:
            _finite.add(file.vouched)


def iter_rows(
    path: Path, offsets: np.ndarray, rows: int, *, count: int | None = None, dimension: int | None = None
) -> Iterator[np.ndarray]:
    """Yield some rows of a partition, without those between them.

    Args:
        path: its file.
        offsets: int64 (n,), ascending; the same one may come several times.
        rows: largest number of rows at a time.
        count: as for ``iter_blocks``.
        dimension: same.

    Yields:
        float32 (<= ``rows``, d), in the order of ``offsets``.

    Raises:
        FormatError: as ``iter_blocks``, but of the rest only its shape is looked at.
    """
    with open_foreign(path) as file:
        item = _embeddings(file, count, dimension)
        if len(offsets) and not 0 <= offsets[0] <= offsets[-1] < len(item):
            raise FormatError(f"{path}: holds {len(item)} rows; rows {offsets[0]} to {offsets[-1]} were asked for")
        for start in range(0, len(offsets), rows):
            wanted = offsets[start : start + rows]
            block = np.empty((len(wanted), item.shape[1]), np.float32)
            item.read_some(wanted, block)
            _require_finite(item, [block])
            yield block


def _embeddings(file: OpenFile, count: int | None, dimension: int | None) -> Stored:
    return dataset(file, "embeddings", kinds="f", shape=(count, dimension))


def _read_again(item: Stored, start: int, block: np.ndarray) -> None:
    """Do what ``_read_into`` does with rows that are known to be finite."""
    deque(read_into(item, start, block), maxlen=0)


def _read_into(item: Stored, start: int, block: np.ndarray) -> None:
    """Fill ``block`` from row ``start`` on, converting to float32."""
    _require_finite(item, read_into(item, start, block))


def _require_finite(item: Stored, parts: Iterable[np.ndarray]) -> None:
    total = 0.0
    for part in parts:
        with np.errstate(invalid="ignore", over="ignore"):
            found = float(part.sum(dtype=np.float32))  # a quarter of the time of float64, and takes no array of flags
            # A sum of finite float32 may overflow in float32, but not in float64.
            total += found if np.isfinite(found) else float(part.sum(dtype=np.float64))
    if not np.isfinite(total):
        raise FormatError(f"{item.source}: holds embeddings that are not finite")


def map_embeddings(path: Path, *, dimension: int) -> np.ndarray:
    """Map a partition's file into memory, read-only: float32 (n, ``dimension``).

    Files that PBG and this package write hold the rows as one stretch of little-endian float32, which is mapped in
    place. Another layout (chunked, compressed, another float type) is read whole.

    Raises:
        FormatError: damaged, not PBG's or of another dimension.
    """
    with open_foreign(path) as file:
        item = dataset(file, "embeddings", kinds="f", shape=(None, dimension))
        if item.dtype == np.dtype("<f4") and item.place is not None:
            return item.mapped(item.place)
        embeddings = empty_rows(*item.shape)
        _read_into(item, 0, embeddings)
    embeddings.flags.writeable = False
    return embeddings
