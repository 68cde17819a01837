"""What the steps of a bucket showed, counted by several workers."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

import torch

from pbg_tasks.formats.directory import BucketStats

if TYPE_CHECKING:
    from collections.abc import Callable

    from pbg_tasks.train.engine.device import Host, Reading
    from pbg_tasks.train.engine.step import Figures

CHECK_EVERY = 16
"""Batches between two looks at the loss: often enough to stop early, rare enough to cost nothing."""


class StepCounters:
    """Sums of a bucket's figures.

    Args:
        edges: in the bucket.
        on_batch: told, now and then, the number of edges since the last time and their mean loss.
        place: where the figures are.
        begun: edges that were done before and are not counted in the figures.

    Attributes:
        count: edges done, those before included.
        batches: counted here.
    """

    def __init__(
        self, edges: int, on_batch: Callable[[int, float], None] | None, place: Host, *, begun: int = 0
    ) -> None:
        self.count = self._begun = begun
        self._edges, self._on_batch, self._place = edges, on_batch, place
        self._totals = torch.zeros(4, dtype=torch.float64, device=place.device)
        self._looks: deque[tuple[int, Reading]] = deque()
        self.batches, self._told = 0, begun
        self._told_loss = 0.0
        self._lock = threading.Lock()

    def add(self, count: int, figures: Figures) -> float | None:
        """Count a batch; return a sum of all losses so far, as of the last look.

        There is a look every ``CHECK_EVERY`` batches and at the end. Where figures take their time to arrive, one may
        tell what the look before it asked for; None: nothing new.
        """
        with self._lock:
            self._totals += torch.stack(figures)
            self.count += count
            self.batches += 1
            if self.batches % CHECK_EVERY and self.count < self._edges:
                return None
            self._looks.append((self.count, self._place.read(self._totals)))
            return self._tell(everything=self.count >= self._edges)

    def _tell(self, *, everything: bool) -> float | None:
        """Tell of what has arrived; wait for all but the last look, which is far enough behind not to be waited for."""
        loss = None
        while self._looks and (everything or len(self._looks) > 1 or self._looks[0][1].ready()):
            count, reading = self._looks.popleft()
            loss = float(reading.wait()[0])
            if self._on_batch is not None:
                self._on_batch(count - self._told, (loss - self._told_loss) / (count - self._told))
            self._told, self._told_loss = count, loss
        return loss

    def stats(self, seconds: float) -> BucketStats:
        """Return the means over the edges counted here."""
        count = self.count - self._begun
        loss, reg, violators_lhs, violators_rhs = (self._totals / max(count, 1)).tolist()
        return BucketStats(count, loss, reg, violators_lhs, violators_rhs, seconds=seconds)
