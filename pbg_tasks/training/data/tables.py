"""Embeddings of one partition in memory, with their optimizer state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from pbg_tasks.formats.embeddings import embeddings_shape, iter_blocks, read_embeddings, read_sums
from pbg_tasks.formats.memory import empty_rows, passing_array

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.config import ModelConfig

_BLOCK_NUMBERS = 1 << 22  # converted at a time: 16 MiB of float32


@dataclass(frozen=True, slots=True)
class Table:
    """Embeddings that are trained in place.

    Attributes:
        embeddings: float32 (n, D), or bfloat16 (``embedding_precision: bf16``).
        row_sums: float32 (n,), RowAdagrad's sum of squared gradients of each row.
    """

    embeddings: torch.Tensor
    row_sums: torch.Tensor

    @classmethod
    def random(cls, count: int, dimension: int, scale: float, generator: torch.Generator) -> Table:
        """Return ``count`` rows drawn from a normal distribution of standard deviation ``scale``."""
        table = cls.blank(count, dimension)
        table.draw(scale, generator)
        return table

    @classmethod
    def blank(cls, count: int, dimension: int, *, narrow: bool = False) -> Table:
        """Return ``count`` rows of uninitialized memory, with sums of 0.

        ``narrow`` ones are bfloat16.
        """
        if not narrow:
            return cls(torch.from_numpy(empty_rows(count, dimension)), torch.zeros(count))
        rows = empty_rows(count, dimension, kind=np.int16)
        return cls(torch.from_numpy(rows).view(torch.bfloat16), torch.zeros(count))

    @classmethod
    def read(cls, path: Path, config: ModelConfig) -> Table:
        """Read a partition's file, in the precision of the config.

        Raises:
            FormatError: damaged, not PBG's, or not finite.
        """
        if not is_narrow(config):
            return cls.from_arrays(*read_embeddings(path))
        table = cls.blank(*embeddings_shape(path), narrow=True)
        table.fill(path)
        return table

    @classmethod
    def from_arrays(cls, embeddings: np.ndarray, row_sums: np.ndarray | None) -> Table:
        """Return a table over writable float32 arrays, without a copy.

        No sums means zeros.
        """
        rows = torch.from_numpy(embeddings)
        return cls(rows, torch.zeros(len(rows)) if row_sums is None else torch.from_numpy(row_sums))

    @property
    def narrow(self) -> bool:
        """Whether embeddings are bfloat16."""
        return self.embeddings.dtype == torch.bfloat16

    def draw(self, scale: float, generator: torch.Generator) -> None:
        """Draw all rows anew, as ``random`` does.

        Narrow rows are those of float32, rounded to the nearest number.
        """
        if not self.narrow:
            self.embeddings.normal_(generator=generator).mul_(scale)
            return
        size = min(self.embeddings.numel(), 2 * _BLOCK_NUMBERS)
        drawn = torch.from_numpy(passing_array((size,), np.dtype(np.float32)))
        for part in _parts(self.embeddings.view(-1)):
            part.copy_(drawn[: len(part)].normal_(generator=generator).mul_(scale))

    def fill(self, path: Path) -> tuple[int, bool]:
        """Overwrite the first rows and sums with those of a file.

        Returns:
            Number of stored rows, and whether the file has their sums.

        Raises:
            FormatError: damaged, not PBG's, of another dimension, larger than the table, or not finite.
        """
        count, dimension = self.embeddings.shape
        if self.narrow:
            stored = min(count, embeddings_shape(path)[0])
            for start, block_KD in iter_blocks(path, max(1, _BLOCK_NUMBERS // dimension), dimension=dimension):
                self.embeddings[start : start + len(block_KD)] = torch.from_numpy(block_KD)
            sums = read_sums(path)
        else:
            found, sums = read_embeddings(path, out=self.embeddings.numpy())
            stored = len(found)
        if sums is not None:
            self.row_sums[:stored] = torch.from_numpy(sums)
        return stored, sums is not None

    def copy(self) -> Table:
        """Return the same rows in memory of their own."""
        table = Table.blank(*self.embeddings.shape, narrow=self.narrow)
        table.embeddings.copy_(self.embeddings)
        table.row_sums.copy_(self.row_sums)
        return table

    def to_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the same memory as arrays.

        bfloat16 is given as its bits, uint16.
        """
        embeddings = self.embeddings.view(torch.uint16) if self.narrow else self.embeddings
        return embeddings.numpy(), self.row_sums.numpy()

    def __len__(self) -> int:
        return len(self.embeddings)


def is_narrow(config: ModelConfig) -> bool:
    """Return whether a config's embeddings are bfloat16 in memory."""
    return config.embedding_precision == "bf16"


def _parts(numbers: torch.Tensor) -> list[torch.Tensor]:
    """Cut numbers into parts that are drawn one after another.

    Torch draws 16 numbers at a time, and the last 16 of a tensor anew if they are no such group. So no part but the
    last ends within a group, and the last has more than one.
    """
    starts = list(range(0, max(len(numbers) - _BLOCK_NUMBERS, 1), _BLOCK_NUMBERS))
    return [numbers[start:stop] for start, stop in zip(starts, [*starts[1:], len(numbers)], strict=True)]
