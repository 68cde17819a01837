"""Reused memory of a step.

New temporaries at every step would come fresh from the kernel, and touching their pages for the first time costs as
much as the matrix products that fill them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Workspace:
    """Buffers by name, which grow to the largest requested size.

    They are for tensors larger than those that the allocator keeps.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return a contiguous tensor of ``like``'s type with arbitrary content.

        It is valid until the next ``take`` of the name.
        """
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < size or buffer.dtype != like.dtype:
            buffer = self._buffers[name] = like.new_empty(size)
        return buffer[:size].view(shape)
