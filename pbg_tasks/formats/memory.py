"""Memory for embeddings and edges.

Rows of embeddings of a multiple of 16 numbers begin at cache lines, and large tables are in huge pages. Memory of edges
goes back to the system as soon as no array uses it.
"""

from __future__ import annotations

import math
import mmap
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

_LINE = 64
_LARGE_BYTES = 4 << 20  # below it, to map a block for every bucket costs more page faults than to keep a few blocks
_LARGEST_KEPT = 31 << 20


def empty_rows(count: int, dimension: int, *, kind: DTypeLike = np.float32) -> np.ndarray:
    """Return uninitialized (count, dimension), aligned to cache lines.

    numpy aligns to 16 bytes, so that every load of 64 bytes would touch two lines. But, unlike torch, it requests huge
    pages from the kernel (from 4 MiB on).
    """
    size = math.prod((count, dimension)) * np.dtype(kind).itemsize
    memory = np.empty(size + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + size].view(kind).reshape(count, dimension)


def passing_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an uninitialized array whose memory is returned to the system.

    The system gets the memory back when the array is deleted. A thread's allocator keeps blocks of up to 32 MiB for
    that thread (mallopt(3), M_MMAP_THRESHOLD). That is useless where one thread reads edges and another deletes them:
    as many blocks would be kept as there are threads. Small blocks are kept all the same.

    Raises:
        MemoryError: there is not enough.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < _LARGE_BYTES:
        return np.empty(shape, dtype)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no memory for {size} bytes: {error.strerror}") from None
    with suppress(AttributeError, OSError):  # some systems and kernels have no huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)


def keep_freed_memory() -> None:
    """Make the allocator keep freed blocks of up to 31 MiB.

    glibc returns freed blocks above a threshold to the kernel. The threshold follows the largest block freed in this
    process, up to 32 MiB (mallopt(3), M_MMAP_THRESHOLD); so one block is freed. Other allocators are not affected.
    """
    np.empty(_LARGEST_KEPT, np.uint8)
