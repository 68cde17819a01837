"""Partitions in memory while buckets are trained.

While one bucket is trained, the partitions of the next are read and others are written. One thread trains, another
reads and writes. A table belongs to one of them at a time. It can be reached only through its slot, which is the future
of the other thread's job on it. ``swap_to`` waits for the slots of the bucket and takes over their tables; the next
``swap_to`` gives them back. A table that leaves memory is passed to its last job. Jobs are done in order, so a
partition is read after it was written, and memory for a new table is taken after the memory of the evicted one was
freed.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

from pbg_tasks.training.data.background import Background
from pbg_tasks.training.data.partitions import Layout, partition_keys
from pbg_tasks.training.data.swaps import SwapPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.formats.metadata import IterationInfo
    from pbg_tasks.training.data.partition_files import PartitionFiles, Stamp
    from pbg_tasks.training.data.partitions import PartitionKey
    from pbg_tasks.training.data.tables import Table
    from pbg_tasks.training.schedule import Bucket


class PartitionSource(Protocol):
    """Source of partitions that this process has not trained yet."""

    def table(self, key: PartitionKey) -> Table:
        """Return the partition of the last commit, or its starting values."""
        ...


class Device(Protocol):
    """Memory of the device that trains, beside this machine's."""

    def send(self, table: Table) -> None:
        """Copy a table to the device and keep it there."""
        ...

    def bring_back(self, table: Table) -> None:
        """Copy what buckets changed back to a kept table."""
        ...

    def forget(self, table: Table) -> None:
        """Keep a table no longer."""
        ...


class PartitionBuffer:
    """Partitions in memory while the ``with`` block of ``io`` runs.

    Args:
        config: the sides of each entity type, the numbers of partitions, and ``partition_buffer``.
        source: returns a partition the first time it is needed.
        files: store partitions that leave memory.
        keep: whether partitions that leave memory are written; a caller that changes none reads them from the source
            again.
        settle: called in the other thread with each table that the iteration will not change any more and with the
            iteration, before the table is written; it may change the table.
        on_final: called in the same thread with the path of each file that is final.
        device: keeps the partitions that are in memory, and is called in the same thread; None: none but the host.

    Attributes:
        io: the thread that reads and writes.
    """

    def __init__(
        self,
        config: ModelConfig,
        source: PartitionSource,
        files: PartitionFiles,
        *,
        keep: bool = True,
        settle: Callable[[PartitionKey, Table, IterationInfo], None] | None = None,
        on_final: Callable[[Path], None] = lambda _: None,
        device: Device | None = None,
    ) -> None:
        self.io = Background("partitions")
        self._device = device
        self._source, self._files = source, files
        self._keep = keep
        self._settle, self._on_final = settle, on_final
        self._keys, self._layout = partition_keys(config), Layout(config)
        self._slots: dict[PartitionKey, Future[Table]] = {}
        self._coming: set[PartitionKey] = set()  # requested and not used since
        self._changed: set[PartitionKey] = set()  # changed since they were written

    def begin(
        self,
        order: Sequence[Bucket],
        then: Sequence[Bucket],
        stamp: Stamp,
        *,
        final: Collection[PartitionKey] = frozenset(),
    ) -> None:
        """Begin an iteration, or continue one.

        Args:
            order: the buckets that it trains.
            then: the buckets of the next iteration; their first partitions are read before this one has ended.
            stamp: metadata of the files that it writes.
            final: stored partitions that no bucket changes any more.
        """
        needs = [self._layout.needs(bucket) for bucket in order]
        ahead = [self._layout.needs(bucket) for bucket in then]
        self._plan = SwapPlan([*needs, *ahead], self._layout.capacity(), self._slots)
        self._uses = Counter(key for keys in needs for key in keys)
        self._stamp = stamp
        self._final = set(final)

    def swap_to(
        self, bucket: Bucket, check: Callable[[], None] | None = None
    ) -> tuple[dict[str, Table], dict[str, Table]]:
        """Take over the tables of the next bucket.

        The tables of the bucket before are given back.

        Args:
            bucket: the next in the iteration's order.
            check: called repeatedly while the tables are waited for; after an exception of it, only ``park`` may be
                called.

        Returns:
            Tables by entity type, for the left-hand and the right-hand side; one object where both are one partition.
        """
        for load, evict in self._plan.advance():
            if evict is not None:
                self._evict(evict)
            self._slots[load] = self.io.submit(self._load, load)
            self._coming.add(load)
        for key in sorted(key for key in self._changed if not self._uses[key]):
            self._finish(key)
        needed = self._layout.needs(bucket)
        tables = {key: self.io.wait(self._slots[key], check) for key in sorted(needed)}
        self._coming -= needed
        self._uses.subtract(needed)
        if self._keep:
            self._changed |= needed
        return self._layout.by_side(bucket, tables)

    def park(self, trained: Collection[PartitionKey], unfinished: Bucket | None) -> dict[PartitionKey, Path]:
        """Write the partitions changed so far by an iteration that stops here.

        Args:
            trained: partitions that buckets of the iteration have changed.
            unfinished: the last bucket, where its training is to be continued.

        Returns:
            The file of each partition.
        """
        self._on_final = lambda _: None
        for key in self._coming:
            self._slots[key].cancel()
        if unfinished is not None:
            self._uses.update(self._layout.needs(unfinished))
        for key in sorted(self._changed.intersection(trained)):
            if self._uses[key]:
                self.io.submit(self._write, key, self._slots[key].result(), self._stamp, final=False)
            else:
                self._finish(key)
        self.io.drain()
        return {key: self._files.path(key) for key in trained}

    def finish(self) -> None:
        """End the iteration: write the file of every partition.

        Partitions that no edge touched get a file, too. Partitions in memory stay there for the next iteration.
        """
        for key in self._keys:
            if key in self._final:
                continue
            if key in self._slots:
                self._finish(key)
            else:
                self.io.submit(self._rewrite, key, self._stamp)
        self.io.drain()

    def _evict(self, key: PartitionKey) -> None:
        slot = self._slots.pop(key)
        self._coming.discard(key)
        if key in self._changed:
            self._changed.remove(key)
            final = not self._uses[key]
            if final:
                self._final.add(key)
            self.io.submit(self._write, key, slot.result(), self._stamp, final=final)
        if self._device is not None:
            self.io.submit(self._forget, slot)

    def _finish(self, key: PartitionKey) -> None:
        """Write a partition that the iteration will not change any more.

        It stays in memory.
        """
        self._changed.discard(key)
        self._final.add(key)
        self._slots[key] = self.io.submit(self._write, key, self._slots[key].result(), self._stamp, final=True)

    # The methods below run in the other thread.

    def _load(self, key: PartitionKey) -> Table:
        table = self._read(key)
        if self._device is not None:
            self._device.send(table)
        return table

    def _read(self, key: PartitionKey) -> Table:
        return self._files.read(key) if key in self._files else self._source.table(key)

    def _forget(self, slot: Future[Table]) -> None:
        if self._device is not None:
            self._device.forget(slot.result())

    def _write(self, key: PartitionKey, table: Table, stamp: Stamp, *, final: bool) -> Table:
        if self._device is not None:
            self._device.bring_back(table)
        if final and self._settle is not None:
            self._settle(key, table, stamp.iteration)
            if self._device is not None:
                self._device.forget(table)
                self._device.send(table)
        path = self._files.write(key, table, stamp)
        if final:
            self._on_final(path)
        return table

    def _rewrite(self, key: PartitionKey, stamp: Stamp) -> None:
        self._write(key, self._read(key), stamp, final=True)
