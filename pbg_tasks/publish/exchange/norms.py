"""Distribution of the norms of imported vectors.

Most formats of vectors have no checksum, so a changed digit or byte is another number. A change in a number's exponent
is visible in the vector's norm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import JsonValue

    from pbg_tasks.publish.exchange.contents import Block

ODD_RATIO = 100.0
"""Multiple of the median from which on the largest norm is reported as odd."""
_STEPS = 64  # steps of the histogram for a doubling: a quantile is exact to 1 %
_LOWEST = -200  # power of two below the norm of any float32 vector that is not zero


class Norms:
    """Norms of the vectors that pass through ``watch``.

    Attributes:
        rows: number of vectors so far.
        zeros: number of those that have only zeros.
        largest: norm, with the name of its vector.
        smallest: same, of those that are not zero.
    """

    def __init__(self) -> None:
        self.rows, self.zeros = 0, 0
        self.largest, self.smallest = (0.0, ""), (np.inf, "")
        self._counts = np.zeros((200 - _LOWEST) * _STEPS, np.int64)

    def watch(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """Yield blocks unchanged, and record their norms."""
        for block in blocks:
            self._add(block)
            yield block

    def _add(self, block: Block) -> None:
        norms = np.sqrt(np.einsum("nd,nd->n", block.vectors, block.vectors, dtype=np.float64))
        self.rows += len(norms)
        nonzero = np.flatnonzero((norms > 0) & np.isfinite(norms))  # the writer refuses norms that are not finite
        self.zeros += int(np.count_nonzero(norms == 0))
        if not len(nonzero):
            return
        found = norms[nonzero]
        low, high = nonzero[found.argmin()], nonzero[found.argmax()]
        self.smallest = min(self.smallest, (float(norms[low]), block.names[low]))
        self.largest = max(self.largest, (float(norms[high]), block.names[high]))
        steps = np.floor((np.log2(found) - _LOWEST) * _STEPS).astype(np.int64)
        self._counts += np.bincount(steps, minlength=len(self._counts))

    def quantile(self, share: float) -> float:
        """Return a quantile of the norms above zero, exact to 1 %."""
        total = int(self._counts.sum())
        if not total:
            return 0.0
        step = int(np.searchsorted(np.cumsum(self._counts), share * total))
        norm = 2.0 ** ((step + 0.5) / _STEPS + _LOWEST)
        return float(min(max(norm, self.smallest[0]), self.largest[0]))

    def to_json(self) -> dict[str, JsonValue]:
        """Return the distribution; quantiles leave zeros out."""
        quantiles = {"p1": 0.01, "median": 0.5, "p99": 0.99}
        ends = (min(self.smallest[0], self.largest[0]), self.largest[0])
        numbers = {"min": ends[0], **{name: self.quantile(share) for name, share in quantiles.items()}, "max": ends[1]}
        return {"zeros": self.zeros, **{name: float(f"{number:.4g}") for name, number in numbers.items()}}

    def oddities(self) -> list[str]:
        """Return signs of damage, one sentence each."""
        found = []
        if self.zeros:
            found.append(f"{self.zeros} of {self.rows} vectors hold zeros alone")
        median = self.quantile(0.5)
        if median and self.largest[0] > ODD_RATIO * median:
            norm, name = self.largest
            found.append(f"the vector of {name!r:.60} has norm {norm:.4g}, {norm / median:.0f} times the median")
        return found
