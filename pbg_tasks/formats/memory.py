"""Memory for embeddings: rows of a multiple of 16 numbers begin at cache lines, and large tables lie in huge pages."""

from __future__ import annotations

import math

import numpy as np

_LINE = 64


def empty_rows(count: int, dimension: int) -> np.ndarray:
    """Return float32 (count, dimension) with whatever is in it, aligned to cache lines.

    numpy aligns to 16 bytes, so that every load of 64 bytes would touch two lines. But, unlike torch, it asks the
    kernel for huge pages (from 4 MiB on).
    """
    size = math.prod((count, dimension)) * 4
    memory = np.empty(size + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + size].view(np.float32).reshape(count, dimension)
