"""The new rows of a partition while it is found out where they start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import embedding_bag

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.train.tables import Table


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The new rows of one partition: those from ``known`` on.

    Attributes:
        known: rows that the release before has.
        rows_ND: float32, where they start, on disk.
        sums_N: float32, their optimizer sums.
        said_ND: float32, weighted sum of what edges say, on disk.
        weight_N: float64, sum of the weights.
        placed_N: whether a round before this one placed the row.
    """

    known: int
    rows_ND: np.ndarray
    sums_N: np.ndarray
    said_ND: np.ndarray
    weight_N: np.ndarray
    placed_N: np.ndarray

    @classmethod
    def of(cls, table: Table, known: int, path: Path) -> Arrivals:
        """Take a partition's new rows as they are now, at random."""
        rows = table.embeddings[known:].numpy()
        count = len(rows)
        on_disk = [
            np.lib.format.open_memmap(path.with_suffix(kind), mode="w+", dtype=np.float32, shape=rows.shape)
            for kind in (".rows.npy", ".said.npy")
        ]
        on_disk[0][:] = rows
        return cls(
            known, on_disk[0], np.zeros(count, np.float32), on_disk[1], np.zeros(count), np.zeros(count, dtype=bool)
        )

    def hear(self, row_M: torch.Tensor, said_MD: torch.Tensor, weight_M: torch.Tensor) -> None:
        """Add what M edges say of their new ends ``row_M`` (from 0)."""
        order_M = torch.argsort(row_M, stable=True)
        present, counts = torch.unique_consecutive(row_M[order_M], return_counts=True)
        offsets = torch.cumsum(counts, 0) - counts
        sums = embedding_bag(order_M, said_MD, offsets, mode="sum", per_sample_weights=weight_M[order_M])
        self.said_ND[present.numpy()] += sums.numpy()
        np.add.at(self.weight_N, row_M.numpy(), weight_M.numpy())
