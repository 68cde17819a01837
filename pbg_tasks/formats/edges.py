"""Edge buckets: ``edges_{lhs}_{rhs}.h5`` with ``lhs``, ``rhs``, ``rel`` and perhaps ``weight`` (PBG 3.2).

PBG chunks every dataset at 50 MiB and truncates weights to integers; here chunks fit the data and weights are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import h5py
import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.guard import FORMAT_VERSION, dataset, open_foreign

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

CHUNK_ROWS = 1 << 17  # 1 MiB of int64
_IDS = ("lhs", "rhs", "rel")


@dataclass(frozen=True, slots=True)
class EdgeList:
    """Edges as offsets into two partitions.

    Attributes:
        lhs: int64 (N,), offset of the left-hand entity in its partition.
        rhs: int64 (N,), offset of the right-hand entity in its partition.
        rel: int64 (N,), relation id.
        weight: float32 (N,), or None when every edge weighs 1.
    """

    lhs: np.ndarray
    rhs: np.ndarray
    rel: np.ndarray
    weight: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.lhs)


def edge_file_name(lhs: int, rhs: int) -> str:
    """Return the file of bucket (lhs, rhs)."""
    return f"edges_{lhs}_{rhs}.h5"


class EdgeFileWriter:
    """Writes a bucket in pieces; the file appears under its name only when all of it is written.

    Args:
        path: where it goes.
        weighted: whether there is a ``weight`` dataset.
    """

    def __init__(self, path: Path, *, weighted: bool) -> None:
        self._path, self._partial = path, path.with_suffix(".tmp.h5")
        self._file = h5py.File(self._partial, "w", libver="earliest")
        self._file.attrs["format_version"] = np.int64(FORMAT_VERSION)
        self._columns = (*_IDS, "weight") if weighted else _IDS
        self._pending: list[EdgeList] = []
        self._pending_rows = self.count = 0

    def append(self, edges: EdgeList) -> None:
        """Add edges."""
        self._pending.append(edges)
        self._pending_rows += len(edges)
        if self._pending_rows >= CHUNK_ROWS:
            self._flush()

    def _flush(self) -> None:
        """Move what is pending into the file; datasets are made chunked only when a second piece follows."""
        for name in self._columns:
            parts = [getattr(edges, name) for edges in self._pending]
            data = np.concatenate(parts) if parts else np.empty(0)
            data = data.astype(np.float32 if name == "weight" else np.int64, copy=False)
            if name not in self._file:
                self._file.create_dataset(
                    name, (0,), data.dtype, maxshape=(None,), chunks=(CHUNK_ROWS,), track_times=False
                )
            self._file[name].resize((self.count + len(data),))
            self._file[name][self.count :] = data
        self.count += self._pending_rows
        self._pending, self._pending_rows = [], 0

    def _write_whole(self) -> None:
        """Write a bucket that fits in one piece contiguously: no chunk larger than the data."""
        for name in self._columns:
            parts = [getattr(edges, name) for edges in self._pending]
            data = np.concatenate(parts) if parts else np.empty(0)
            data = data.astype(np.float32 if name == "weight" else np.int64, copy=False)
            self._file.create_dataset(name, data=data, track_times=False)
        self.count = self._pending_rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                if self.count:
                    self._flush()
                else:
                    self._write_whole()
        finally:
            self._file.close()
        if kind is None:
            self._partial.replace(self._path)
        else:
            self._partial.unlink(missing_ok=True)


def write_edges(path: Path, edges: EdgeList) -> None:
    """Write a bucket."""
    with EdgeFileWriter(path, weighted=edges.weight is not None) as writer:
        writer.append(edges)


def count_edges(path: Path) -> int:
    """Return how many edges a bucket's file holds.

    Raises:
        FormatError: it is damaged or foreign.
    """
    with open_foreign(path) as file:
        return len(dataset(path, file, "lhs", ndim=1))


def read_edges(path: Path, start: int = 0, stop: int | None = None) -> EdgeList:
    """Read edges ``start`` to ``stop`` of a bucket; any integer type of ids and any number type of weights.

    Raises:
        FormatError: a dataset is missing, of another length or type, or an id is negative.
    """
    with open_foreign(path) as file:
        columns = {name: dataset(path, file, name, ndim=1) for name in _IDS}
        if "weight" in file:
            columns["weight"] = dataset(path, file, "weight", ndim=1)
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise FormatError(f"{path}: datasets differ in length: {lengths}")
        ids = {name: _ids(path, name, columns[name], start, stop) for name in _IDS}
        weight = columns["weight"][start:stop].astype(np.float32) if "weight" in columns else None
    return EdgeList(**ids, weight=weight)


def _ids(path: Path, name: str, column: h5py.Dataset, start: int, stop: int | None) -> np.ndarray:
    if column.dtype.kind not in "iu":
        raise FormatError(f"{path}: dataset {name!r} is of type {column.dtype}, expected integers")
    ids: np.ndarray = column[start:stop].astype(np.int64)
    if len(ids) and ids.min() < 0:
        raise FormatError(f"{path}: dataset {name!r} holds a negative id (featurized entities are not supported)")
    return ids
