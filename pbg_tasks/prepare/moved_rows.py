"""Copying of embeddings and optimizer sums to other partitions.

Their bits stay the same. As many rows are copied at a time as memory has room for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.embeddings import iter_blocks, read_sums
from pbg_tasks.formats.npy import new_array

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.prepare.reassignment import Places

_BLOCK_VALUES = 1 << 22  # numbers read at once: 16 MiB of float32


class MovedRows:
    """New partitions of one entity type, on disk while they fill.

    Args:
        counts: rows of each.
        dimension: of the embeddings.
        scratch: local directory.
        name: of the files there.

    Attributes:
        embeddings: float32 (n, dimension) of each partition, memory-mapped.
        sums: float32 (n,) of each partition; 0 where no file had any.
        has_sums: whether a file had some.

    Raises:
        ResourceError: the disk has no room for them.
    """

    def __init__(self, counts: list[int], dimension: int, scratch: Path, name: str) -> None:
        self.dimension = dimension
        self.embeddings = [
            new_array(scratch / f"{name}-{part}.npy", (count, dimension)) for part, count in enumerate(counts)
        ]
        self.sums = [np.zeros(count, np.float32) for count in counts]
        self.has_sums = False
        self._missing = sum(counts)

    def take(self, path: Path, places: Places) -> None:
        """Copy the rows of a present partition to their new places.

        Raises:
            FormatError: the file is damaged, or has another number of rows or another dimension.
        """
        total = len(places.partition)
        step = max(1, _BLOCK_VALUES // self.dimension)
        for start, block in iter_blocks(path, step, count=total, dimension=self.dimension):
            there = slice(start, start + len(block))
            for part, chosen in _by_partition(places.partition[there]):
                self.embeddings[part][places.offset[there][chosen]] = block[chosen]
                self._missing -= len(chosen)
        sums = read_sums(path)
        if sums is None:
            return
        self.has_sums = True
        for part, chosen in _by_partition(places.partition):
            self.sums[part][places.offset[chosen]] = sums[chosen]

    def check(self, source: str) -> None:
        """Check that every row was copied.

        Raises:
            FormatError: rows are missing.
        """
        if self._missing:
            raise FormatError(f"{source}: lacks {self._missing} rows, for which it has names")


def _by_partition(partition: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return each partition with the rows that move there."""
    return [(part, np.flatnonzero(partition == part)) for part in np.unique(partition).tolist() if part >= 0]
