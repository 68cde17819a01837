"""Memory a step needs again and again.

A step's temporaries would come fresh from the kernel every time, and first touching their pages costs as much as the
matrix products that fill them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Workspace:
    """Buffers by name, grown to the largest size asked for: for what is larger than the allocator keeps."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return a contiguous tensor of ``like``'s type with whatever is in it; it is valid until the next ``take``."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < size or buffer.dtype != like.dtype:
            buffer = self._buffers[name] = like.new_empty(size)
        return buffer[:size].view(shape)
