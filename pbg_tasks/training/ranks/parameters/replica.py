"""Copy of one shard on this rank, and its known state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from pbg_tasks.training.ranks.parameters.segments import Segments, pack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor

    from pbg_tasks.training.ranks.parameters.plan import Shard
    from pbg_tasks.training.ranks.parameters.server import ParameterStore, ParameterUpdate
    from pbg_tasks.training.ranks.parameters.step_lock import StepLock


class Replica:
    """Numbers that this rank trains while others do, too.

    At every moment *local = known + pending* holds for each number: *known* is the server's value at the last swap,
    *pending* the sum of later changes that the server has not received.

    Args:
        shard: extents of the numbers.
        tensors: float32, contiguous, by name: trained in place.
        store: the server that keeps the shard.
        step_lock: lock that excludes steps while tensors are changed here.

    Attributes:
        nbytes: size of its numbers.
    """

    def __init__(self, shard: Shard, tensors: Mapping[str, Tensor], store: ParameterStore, step_lock: StepLock) -> None:
        self._key, self._store = shard.key, store
        self._step_lock = step_lock
        self._views = [tensors[name].view(-1)[start:stop] for name, start, stop in shard.extents]
        ends = np.cumsum([len(view) for view in self._views])
        self._places = [slice(end - len(view), end) for end, view in zip(ends.tolist(), self._views, strict=True)]
        self._segments = Segments(shard.lengths())
        self._view_of = np.searchsorted(ends, np.cumsum(self._segments.lengths))  # by segment
        self._versions = np.zeros_like(self._segments.lengths)
        self._known = np.zeros(self._segments.size, np.float32)
        self.nbytes = self._known.nbytes

    def seed(self) -> None:
        """Send the server the local numbers, in place of its own."""
        self._store.seed(self._key, self._segments.lengths, self._read())

    def swap(self) -> int:
        """Send pending changes, and apply those of others.

        Returns:
            Bytes of numbers that were sent and received.
        """
        # Read while steps are under way: later changes of a number stay pending.
        local = self._read()
        changed = self._segments.differing(local, self._known)
        pushed = self._segments.runs(changed)
        deltas = pack(local, pushed) - pack(self._known, pushed)
        update = self._store.swap(self._key, self._versions, changed, deltas)
        for there, packed in pushed:  # as the server did, which does not return segments that no other rank changed
            self._known[there] += deltas[packed]
        fresh = self._learn(update, changed)
        if fresh.any():
            self._take_in(local, fresh)
        return int(deltas.nbytes + update.values.nbytes)

    def pull(self) -> None:
        """Replace the local numbers by those of the server."""
        nothing = np.zeros(len(self._versions), np.bool_)
        self._learn(self._store.swap(self._key, self._versions, nothing, np.empty(0, np.float32)), nothing)
        with self._step_lock.alone():
            self._write(self._known, range(len(self._views)))

    def _learn(self, update: ParameterUpdate, changed: np.ndarray) -> np.ndarray:
        """Record the server's answer, and return segments that others changed.

        Returns:
            bool (K,).
        """
        fresh: np.ndarray = update.versions != self._versions + changed
        for there, packed in self._segments.runs(fresh):
            self._known[there] = update.values[packed]
        self._versions = update.versions
        return fresh

    def _take_in(self, local: np.ndarray, fresh: np.ndarray) -> None:
        """Apply the changes of others to the local numbers.

        The changed segments become the known values plus the training since ``local`` was read.
        """
        runs, views = self._segments.runs(fresh), np.unique(self._view_of[fresh]).tolist()
        with self._step_lock.alone():
            trained = self._read()
            for there, _ in runs:
                trained[there] -= local[there]
                trained[there] += self._known[there]
            self._write(trained, views)

    def _read(self) -> np.ndarray:
        array: np.ndarray = torch.cat(self._views).cpu().numpy()
        return array

    def _write(self, array: np.ndarray, views: Iterable[int]) -> None:
        for view in views:
            self._views[view].copy_(torch.from_numpy(array[self._places[view]]))
