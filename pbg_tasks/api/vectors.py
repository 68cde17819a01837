"""Embeddings of one entity type, memory-mapped where their files allow it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Vectors:
    """Embeddings of a type, its partitions one after the other.

    Args:
        partitions: float32 (n, D) each.
        find_hidden: given ``bases``, returns the ascending numbers of entities that no search finds.

    Attributes:
        partitions: as given.
        hidden: int64, ascending numbers of entities that no search finds.
        bases: int64 (P + 1,), number of each partition's first entity, then the total.
    """

    def __init__(
        self, partitions: Sequence[np.ndarray], find_hidden: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> None:
        self.partitions = tuple(partitions)
        self.bases = np.cumsum([0, *map(len, partitions)])
        self.hidden = np.empty(0, np.int64) if find_hidden is None else find_hidden(self.bases)

    def __len__(self) -> int:
        return int(self.bases[-1])

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Return some embeddings, float32 (N, D)."""
        result = np.empty((len(numbers), self.partitions[0].shape[1]), np.float32)
        of_row = np.searchsorted(self.bases, numbers, side="right") - 1
        for partition in np.unique(of_row):
            rows = np.flatnonzero(of_row == partition)
            result[rows] = self.partitions[partition][numbers[rows] - self.bases[partition]]
        return result

    def blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield blocks: (number of the first, float32 (<= ``rows``, D)).

        A block is a copy, because torch needs writable memory.
        """
        for base, partition in zip(self.bases, self.partitions, strict=False):
            for start in range(0, len(partition), rows):
                yield int(base) + start, np.array(partition[start : start + rows])
