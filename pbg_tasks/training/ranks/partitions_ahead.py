"""Partitions that come and go while a rank trains."""

from __future__ import annotations

from concurrent.futures import wait
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self
from weakref import WeakValueDictionary

from pbg_tasks.errors import FormatError, PbgError, RankLostError, ResourceError
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.training.data.background import Background

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from concurrent.futures import Future

    from pbg_tasks.training.data.partitions import PartitionKey
    from pbg_tasks.training.data.tables import Table
    from pbg_tasks.training.ranks.messages import Source

_PATIENCE_SECONDS = 1.0  # for transfers at the end, when those that count have been waited for
_BREAKING = (RankLostError, ResourceError, FormatError)  # the connection on which they came is closed


class GenerationError(RuntimeError):
    """Partition of another generation than its source names."""


class PartitionsAhead:
    """Threads that move partitions of the next and the last bucket.

    What is read in advance is a hint. It counts only if the lease that follows names the same generation, so a
    partition that another rank has trained meanwhile, or that the store does not give, costs no more than reading it
    again. A hint and what is put away share the connections to partition servers, so an error that closes one ends the
    rank.

    At most one bucket's partitions are on their way at a time.

    Args:
        fetch: returns a partition, given its source; raises ``GenerationError`` where that is out of date.
        put_away: gives tables, trained under a lease, to their servers or the store, and reports that.
        on_error: called in another thread with the error of ``put_away``, after which nothing more is put away, or with
            one of ``fetch`` after which nothing more is read.
    """

    def __init__(
        self,
        fetch: Callable[[PartitionKey, Source], Table],
        put_away: Callable[[Mapping[PartitionKey, Table], int], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._fetch, self._put_away = fetch, put_away
        self._on_error = on_error
        # One for each partition of a bucket; the threads of a pool would hold up the end of the process.
        self._readers: list[Background] = []
        self._writer = Background("partitions behind", patience=_PATIENCE_SECONDS)
        self._coming: dict[PartitionKey, tuple[int, Future[Table | None]]] = {}
        # By generation, while they are still read: a thread refers to them, and after that nothing to their tables.
        self._dropped: WeakValueDictionary[tuple[PartitionKey, int], Future[Table | None]] = WeakValueDictionary()
        self._going: Future[None] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._writer)
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()
        wait([reader.submit(lambda: None) for reader in self._readers], _PATIENCE_SECONDS)
        self._stack.close()

    def read(self, sources: Mapping[PartitionKey, Source]) -> None:
        """Begin to read partitions, which ``take`` returns."""
        while len(self._readers) < len(sources):
            self._readers.append(self._stack.enter_context(Background("partition ahead", patience=0.0)))
        self._coming = {
            key: (source.generation, reader.submit(self._read, key, source))
            for reader, (key, source) in zip(self._readers, sources.items(), strict=False)
            if (key, source.generation) not in self._dropped  # two reads would write the same local file
        }

    def take(
        self, wanted: Mapping[PartitionKey, int], check: Callable[[], None]
    ) -> dict[PartitionKey, tuple[int, Table]]:
        """Return the tables that were read in advance, with their generations.

        What is not wanted is dropped.

        Args:
            wanted: generations of the partitions that are needed.
            check: called repeatedly while one of them is read; an error that it raises ends the wait.

        Raises:
            PbgError: a connection was lost, or memory ran out, while they were read.
        """
        coming = {key: each for key, (generation, each) in self._coming.items() if wanted.get(key) == generation}
        self._drop(keep=coming)
        for key, generation in wanted.items():
            if (dropped := self._dropped.get((key, generation))) is not None:
                coming[key] = dropped  # after all; another read would write the same local file
        tables = {key: self._writer.wait(each, check) for key, each in coming.items()}
        return {key: (wanted[key], table) for key, table in tables.items() if table is not None}

    def clear(self, check: Callable[[], None]) -> None:
        """Drop what was read in advance, and wait until nothing is read.

        Args:
            check: called repeatedly meanwhile; an error that it raises ends the wait.

        Raises:
            PbgError: as of ``take``.
        """
        self._drop()
        for reader in self._readers:
            reader.wait(reader.submit(lambda: None), check)

    def _drop(self, keep: Collection[PartitionKey] = ()) -> None:
        coming, self._coming = self._coming, {}
        for key, (generation, future) in coming.items():
            if key not in keep and not future.cancel():
                self._dropped[key, generation] = future

    def put(self, tables: Mapping[PartitionKey, Table], lease: int, keep: Collection[PartitionKey]) -> None:
        """Begin to put partitions away, after those before are.

        Args:
            tables: the partitions; nothing may change them from now on, apart from those in ``keep``.
            lease: number of the lease that trained them.
            keep: those of them that the caller trains on; a copy of each is put away.

        Raises:
            PbgError: the partitions before could not be put away.
        """
        self.finish()
        copies = in_parallel(lambda key: tables[key].copy(), keep, len(keep))
        self._going = self._writer.submit(self._put, {**tables, **dict(zip(keep, copies, strict=True))}, lease)

    def finish(self) -> None:
        """Wait until all partitions are put away.

        Raises:
            PbgError: they could not be put away.
        """
        going, self._going = self._going, None
        if going is not None:
            self._writer.wait(going)

    def settle(self, seconds: float) -> None:
        """Wait so many seconds for partitions that are put away."""
        if self._going is not None:
            wait([self._going], seconds)

    def check(self) -> None:
        """Raise the error for which nothing more is put away, or read."""
        for each in (self._writer, *self._readers):
            each.check()

    # The methods below run in other threads.

    def _read(self, key: PartitionKey, source: Source) -> Table | None:
        try:
            return self._fetch(key, source)
        except BaseException as error:
            if isinstance(error, PbgError | GenerationError) and not isinstance(error, _BREAKING):
                return None  # read again under the lease, where an error that lasts is raised
            self._on_error(error)
            raise

    def _put(self, tables: Mapping[PartitionKey, Table], lease: int) -> None:
        try:
            self._put_away(tables, lease)
        except BaseException as error:
            self._on_error(error)
            raise
