"""What the steps of a bucket showed, counted by several workers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

from pbg_tasks.formats.directory import BucketStats

if TYPE_CHECKING:
    from collections.abc import Callable

    from pbg_tasks.train.step import Figures

CHECK_EVERY = 16
"""Batches between two looks at the loss: often enough to stop early, rare enough to cost nothing."""


class Tally:
    """Sums of a bucket's figures.

    Args:
        edges: in the bucket.
        on_batch: told, now and then, the number of edges since the last time and their mean loss.

    Attributes:
        count: edges done.
    """

    def __init__(self, edges: int, on_batch: Callable[[int, float], None] | None) -> None:
        self.count = 0
        self._edges, self._on_batch = edges, on_batch
        self._totals = torch.zeros(4, dtype=torch.float64)
        self._batches = self._told = 0
        self._told_loss = 0.0
        self._lock = threading.Lock()

    def add(self, count: int, figures: Figures) -> float | None:
        """Count a batch; return the sum of all losses every ``CHECK_EVERY`` batches and at the end."""
        with self._lock:
            self._totals += torch.stack(figures)
            self.count += count
            self._batches += 1
            if self._batches % CHECK_EVERY and self.count < self._edges:
                return None
            loss = float(self._totals[0])
            if self._on_batch is not None:
                self._on_batch(self.count - self._told, (loss - self._told_loss) / (self.count - self._told))
            self._told, self._told_loss = self.count, loss
            return loss

    def stats(self, seconds: float) -> BucketStats:
        """Return the means over the edges."""
        loss, reg, violators_lhs, violators_rhs = (self._totals / max(self.count, 1)).tolist()
        return BucketStats(self.count, loss, reg, violators_lhs, violators_rhs, seconds=seconds)
