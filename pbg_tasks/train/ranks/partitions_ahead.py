"""Partitions that come and go while a rank trains."""

from __future__ import annotations

from concurrent.futures import wait
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.train.data.background import Background

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from concurrent.futures import Future
    from types import TracebackType

    from pbg_tasks.train.data.partitions import PartitionKey
    from pbg_tasks.train.data.tables import Table
    from pbg_tasks.train.ranks.messages import Source

_PATIENCE_SECONDS = 1.0  # for transfers at the end, when those that count have been waited for


class PartitionsAhead:
    """Threads that move partitions of the next and the last bucket.

    What is read in advance is a hint. It counts only if the lease that follows names the same generation, so an error,
    or a partition that another rank has trained meanwhile, costs no more than reading it again.

    At most one bucket's partitions are on their way at a time.

    Args:
        fetch: returns a partition, given its source.
        put_away: gives tables, trained under a lease, to their servers or the store, and reports that.
        on_error: called in another thread with the error of ``put_away``, after which nothing more is put away.
    """

    def __init__(
        self,
        fetch: Callable[[PartitionKey, Source], Table],
        put_away: Callable[[Mapping[PartitionKey, Table], int], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._fetch, self._put_away, self._on_error = fetch, put_away, on_error
        self._reader = Background("partitions ahead", patience=_PATIENCE_SECONDS)
        self._writer = Background("partitions behind", patience=_PATIENCE_SECONDS)
        self._coming: Future[dict[PartitionKey, tuple[int, Table]]] | None = None
        self._going: Future[None] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._reader)
        self._stack.enter_context(self._writer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def read(self, sources: Mapping[PartitionKey, Source]) -> None:
        """Begin to read partitions, which ``take`` returns."""
        self._coming = self._reader.submit(self._read, sources)

    def take(self) -> dict[PartitionKey, tuple[int, Table]]:
        """Return the tables that were read in advance, with their generations."""
        coming, self._coming = self._coming, None
        return {} if coming is None else self._reader.wait(coming)

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
        copies = in_parallel(lambda key: tables[key].copy(), keep, max(len(keep), 1))
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
        """Raise the error for which nothing more is put away."""
        self._writer.check()

    # The methods below run in the two threads.

    def _read(self, sources: Mapping[PartitionKey, Source]) -> dict[PartitionKey, tuple[int, Table]]:
        try:
            tables = in_parallel(lambda key: self._fetch(key, sources[key]), sources, max(len(sources), 1))
        except Exception:  # noqa: BLE001 - read again under the lease, where an error that lasts is raised
            return {}
        return {key: (sources[key].generation, table) for key, table in zip(sources, tables, strict=True)}

    def _put(self, tables: Mapping[PartitionKey, Table], lease: int) -> None:
        try:
            self._put_away(tables, lease)
        except BaseException as error:
            self._on_error(error)
            raise
