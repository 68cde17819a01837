"""Figures of a bucket's steps, added up by several workers."""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pbg_tasks.formats.directory import BucketStats

if TYPE_CHECKING:
    from collections.abc import Callable

    from pbg_tasks.training.engine.device import Host, Reading
    from pbg_tasks.training.engine.step import Figures

CHECK_EVERY = 16
"""Batches between two looks at the loss.

It is often enough to stop early, and rare enough to cost nothing.
"""


@dataclass(slots=True)
class Stretch:
    """Batches between two looks at the loss, which several workers train.

    With several workers they are counted in another order than they are numbered.

    Attributes:
        first: lowest number.
        last: highest number.
        relations: ids of their relations.
    """

    first: int
    last: int
    relations: set[int]

    def joined(self, other: Stretch) -> Stretch:
        """Return the batches of both."""
        return Stretch(min(self.first, other.first), max(self.last, other.last), self.relations | other.relations)


class StepCounters:
    """Sums of a bucket's figures.

    Args:
        edges: number of edges in the bucket.
        on_batch: called now and then with the number of edges since the last call and their mean loss.
        place: device of the figures.
        begun: number of edges that were trained before and are not counted in the figures.

    Attributes:
        count: number of trained edges, those before included.
        batches: number of batches counted here.
        diverged: batches of the first look whose sum of losses is not finite.
    """

    def __init__(
        self, edges: int, on_batch: Callable[[int, float], None] | None, place: Host, *, begun: int = 0
    ) -> None:
        self.count = self._begun = begun
        self._edges, self._on_batch = edges, on_batch
        self._place = place
        self._totals = torch.zeros(4, dtype=torch.float64, device=place.device)
        self._looks: deque[tuple[int, Reading, Stretch]] = deque()
        self._stretch: Stretch | None = None
        self.diverged: Stretch | None = None
        self.batches, self._reported = 0, begun
        self._reported_loss = 0.0
        self._lock = threading.Lock()

    def add(self, count: int, figures: Figures, counted: Stretch) -> float | None:
        """Count a batch, or several, and return the sum of losses.

        It is the sum over all batches up to the last look.

        A look takes place every ``CHECK_EVERY`` batches and at the end. On a device figures arrive late, so that a look
        may return the figures of the look before; None: nothing new has arrived.

        Args:
            count: number of edges.
            figures: of the batches.
            counted: the batches.
        """
        with self._lock:
            before = self.batches
            for of_batch in torch.stack(figures, -1).view(-1, 4):
                self._totals += of_batch
                self.batches += 1
            self.count += count
            stretch = self._stretch = counted if self._stretch is None else self._stretch.joined(counted)
            if before // CHECK_EVERY == self.batches // CHECK_EVERY and self.count < self._edges:
                return None
            self._looks.append((self.count, self._place.read(self._totals), stretch))
            self._stretch = None
            return self._report(everything=self.count >= self._edges)

    def _report(self, *, everything: bool) -> float | None:
        """Report what has arrived.

        All looks but the last are waited for; the last is too recent for that.
        """
        loss = None
        while self._looks and (everything or len(self._looks) > 1 or self._looks[0][1].ready()):
            count, reading, stretch = self._looks.popleft()
            loss = float(reading.wait()[0])
            if self.diverged is None and not math.isfinite(loss):
                self.diverged = stretch
            if self._on_batch is not None:
                self._on_batch(count - self._reported, (loss - self._reported_loss) / (count - self._reported))
            self._reported, self._reported_loss = count, loss
        return loss

    def stats(self, seconds: float) -> BucketStats:
        """Return the means over the edges counted here."""
        count = self.count - self._begun
        loss, reg, violators_lhs, violators_rhs = (self._totals / max(count, 1)).tolist()
        return BucketStats(count, loss, reg, violators_lhs, violators_rhs, seconds=seconds)
