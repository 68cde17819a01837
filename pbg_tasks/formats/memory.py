"""Memory for embeddings and edges.

Rows of embeddings of a multiple of 16 numbers begin at cache lines, and large tables lie in huge pages. Memory of edges
goes back to the system as soon as nobody needs them.
"""

from __future__ import annotations

import math
import mmap
from contextlib import suppress

import numpy as np

_LINE = 64
_LARGE_BYTES = 1 << 20


def empty_rows(count: int, dimension: int) -> np.ndarray:
    """Return float32 (count, dimension) with whatever is in it, aligned to cache lines.

    numpy aligns to 16 bytes, so that every load of 64 bytes would touch two lines. But, unlike torch, it asks the
    kernel for huge pages (from 4 MiB on).
    """
    size = math.prod((count, dimension)) * 4
    memory = np.empty(size + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + size].view(np.float32).reshape(count, dimension)


def passing_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array with whatever is in it, whose memory the system has back once it is let go of.

    A thread's allocator keeps blocks of up to 32 MiB for that thread (mallopt(3), M_MMAP_THRESHOLD), which is no use
    where one thread reads edges and another lets go of them: they would be held as often as there are threads.

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
    with suppress(AttributeError, OSError):  # there are systems, and kernels, without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)
