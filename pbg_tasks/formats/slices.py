"""Reading and writing of large datasets, slice by slice.

h5py holds one lock for all threads through each call. A partition of gigabytes written in one call would block the
thread that opens the next bucket's file for as long as the disk takes.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pbg_tasks.formats.memory import passing_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import h5py
    from numpy.typing import DTypeLike

    from pbg_tasks.formats.stored import Stored

_SLICE_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
"""Bytes of a chunk of a dataset with checksums: as much as the HDF5 library caches of one dataset."""
_TURN_SECONDS = 0.0005
"""Pause in seconds for the sake of other threads. The lock is not fair: a thread that releases it and takes it again at
once has it before another thread has woken up.
"""


def write_dataset(
    file: h5py.Group,
    name: str,
    data: np.ndarray,
    *,
    dtype: DTypeLike | None = None,
    checksums: bool = False,
    convert: Callable[[np.ndarray], np.ndarray] = lambda part: part,
) -> None:
    """Write a new dataset; the file's bytes are those of one call.

    Args:
        file: to write into.
        name: path of the dataset.
        data: of any shape.
        dtype: of the dataset; None: that of the data.
        checksums: whether it is cut into chunks with a fletcher32 each; else it is contiguous.
        convert: makes what is written of a slice of the data.
    """
    kind = data.dtype if dtype is None else np.dtype(dtype)
    layout = checked_layout(data.shape, kind) if checksums else {}
    if data.size * kind.itemsize <= _SLICE_BYTES:
        file.create_dataset(name, data=convert(data), dtype=dtype, track_times=False, **layout)
        return
    item = file.create_dataset(name, data.shape, kind, track_times=False, **layout)
    for start, stop in _slices(item, 0, len(data)):
        item[start:stop] = convert(data[start:stop])


def checked_layout(shape: tuple[int, ...], kind: np.dtype[Any]) -> dict[str, Any]:
    """Return the options of a dataset with checksums.

    An empty dataset has nothing to check, so it has no options. Chunks get their places when the dataset is created, so
    that the file's bytes do not depend on the order of writes.
    """
    if not math.prod(shape):
        return {}
    import h5py

    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    rows = max(1, _CHUNK_BYTES * shape[0] // (math.prod(shape) * kind.itemsize))
    return {"chunks": (min(rows, shape[0]), *shape[1:]), "fletcher32": True, "dcpl": creation}


def read_into(item: Stored, start: int, out: np.ndarray) -> Iterator[np.ndarray]:
    """Fill ``out`` from row ``start`` of a dataset on.

    Numbers are converted to its type. Each part of it is yielded once it is filled.
    """
    if not out.size:
        return
    for begin, end in _slices(item, start, start + len(out)):
        block = out[begin - start : end - start]
        item.read_rows(begin, block)
        yield block


def read_part(item: Stored, start: int = 0, stop: int | None = None) -> np.ndarray:
    """Return rows ``start`` to ``stop`` of a dataset, in its own type.

    Rows beyond its end are left out.
    """
    start, stop, _ = slice(start, stop).indices(len(item))
    out = passing_array((max(0, stop - start), *item.shape[1:]), item.dtype)
    for _ in read_into(item, start, out):
        pass
    return out


def _slices(item: h5py.Dataset | Stored, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut rows into slices, with a pause for other threads in between.

    Slices end at the ends of chunks, since a chunk is always read as a whole.
    """
    row = max(1, item.dtype.itemsize * (item.size // max(1, len(item))))
    step = max(1, _SLICE_BYTES // row)
    chunk = item.chunks[0] if item.chunks else 1
    step = -(-step // chunk) * chunk
    end = min(start - start % chunk + step, stop)
    yield start, end
    while end < stop:
        let_others()
        start, end = end, min(end + step, stop)
        yield start, end


def let_others() -> None:
    """Pause, so that threads that wait for h5py's lock can take it."""
    time.sleep(_TURN_SECONDS)
