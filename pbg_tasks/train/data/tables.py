"""Embeddings of one partition in memory, with their optimizer state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from pbg_tasks.formats.memory import empty_rows


@dataclass(frozen=True, slots=True)
class Table:
    """Embeddings that are trained in place.

    Attributes:
        embeddings: float32 (n, D).
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
    def blank(cls, count: int, dimension: int) -> Table:
        """Return ``count`` rows of uninitialized memory, with sums of 0."""
        return cls(torch.from_numpy(empty_rows(count, dimension)), torch.zeros(count))

    @classmethod
    def from_arrays(cls, embeddings: np.ndarray, row_sums: np.ndarray | None) -> Table:
        """Return a table over writable float32 arrays, without a copy.

        No sums means zeros.
        """
        rows = torch.from_numpy(embeddings)
        return cls(rows, torch.zeros(len(rows)) if row_sums is None else torch.from_numpy(row_sums))

    def draw(self, scale: float, generator: torch.Generator) -> None:
        """Draw all rows anew, as ``random`` does."""
        self.embeddings.normal_(generator=generator).mul_(scale)

    def copy(self) -> Table:
        """Return the same rows in memory of their own."""
        embeddings, sums = self.to_arrays()
        rows = empty_rows(*embeddings.shape)
        np.copyto(rows, embeddings)
        return Table.from_arrays(rows, sums.copy())

    def to_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the same memory as arrays."""
        return self.embeddings.numpy(), self.row_sums.numpy()

    def __len__(self) -> int:
        return len(self.embeddings)
