"""Embeddings of one partition: ``embeddings_{type}_{part}.v{N}.h5`` (PBG 3.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import h5py
import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.guard import dataset, open_foreign
from pbg_tasks.formats.metadata import IterationInfo, write_metadata
from pbg_tasks.formats.optimizer import read_state, row_adagrad_state, sums_of, write_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pbg_tasks.config import ConfigSchema

PLAIN_SUMS = "optimizer/plain/sum"

__all__ = ["IterationInfo", "embeddings_file_name", "iter_blocks", "read_embeddings", "write_embeddings"]


def embeddings_file_name(entity: str, partition: int, version: int) -> str:
    """Return the file of one partition in one version."""
    return f"embeddings_{entity}_{partition}.v{version}.h5"


def write_embeddings(
    path: Path,
    embeddings: np.ndarray,
    row_sums: np.ndarray | None,
    *,
    lr: float,
    iteration: IterationInfo,
    config: ConfigSchema,
) -> None:
    """Write a partition.

    Args:
        path: where to.
        embeddings: float32 (n, d).
        row_sums: RowAdagrad's sums, float32 (n,); None leaves the optimizer out.
        lr: goes into the optimizer's state.
        iteration: goes into the attributes.
        config: same.
    """
    partial = path.with_suffix(".tmp.h5")
    with h5py.File(partial, "w", libver="earliest") as file:
        write_metadata(file, config, iteration)
        file.create_dataset("embeddings", data=embeddings, dtype=np.float32, track_times=False)
        if row_sums is not None:
            write_state(file, row_adagrad_state(row_sums, lr))
            file.create_dataset(PLAIN_SUMS, data=row_sums, dtype=np.float32, track_times=False)
    partial.replace(path)


def read_embeddings(
    path: Path, *, count: int | None = None, dimension: int | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Read a partition, any float type and compression.

    Args:
        path: its file.
        count: rows it must have, None for any.
        dimension: columns it must have, None for any.

    Returns:
        Embeddings float32 (n, d), and RowAdagrad's sums float32 (n,) or None when the file has none.

    Raises:
        FormatError: damaged, foreign, of another shape, or not finite.
    """
    with open_foreign(path) as file:
        item = dataset(path, file, "embeddings", ndim=2)
        _check_shape(path, item, count, dimension)
        embeddings = item[...].astype(np.float32, copy=False)
        if not np.isfinite(embeddings).all():
            raise FormatError(f"{path}: holds embeddings that are not finite")
        sums = file[PLAIN_SUMS][...] if PLAIN_SUMS in file else _blob_sums(file)
    if sums is not None and sums.shape != (len(embeddings),):
        raise FormatError(f"{path}: optimizer sums of shape {sums.shape} for {len(embeddings)} rows")
    return embeddings, sums


def _blob_sums(file: h5py.File) -> np.ndarray | None:
    sums = sums_of(read_state(file))
    return None if sums is None else sums[0]


def _check_shape(path: Path, item: h5py.Dataset, count: int | None, dimension: int | None) -> None:
    rows, columns = item.shape
    if item.dtype.kind != "f":
        raise FormatError(f"{path}: embeddings are of type {item.dtype}, expected floats")
    if count is not None and rows != count:
        raise FormatError(f"{path}: holds {rows} rows, the partition has {count} entities")
    if dimension is not None and columns != dimension:
        raise FormatError(f"{path}: dimension is {columns}, the config says {dimension}")


def iter_blocks(
    path: Path, rows: int, *, count: int | None = None, dimension: int | None = None
) -> Iterator[tuple[int, np.ndarray]]:
    """Stream a partition: yield (offset of the first row, float32 (<= ``rows``, d)).

    Raises:
        FormatError: damaged, foreign or of another shape.
    """
    with open_foreign(path) as file:
        item = dataset(path, file, "embeddings", ndim=2)
        _check_shape(path, item, count, dimension)
        for start in range(0, len(item), rows):
            yield start, item[start : start + rows].astype(np.float32, copy=False)
