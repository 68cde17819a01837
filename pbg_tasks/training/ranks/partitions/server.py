"""Server that keeps partitions in memory between two ranks.

It stores them a little later than they arrive.
"""

from __future__ import annotations

import threading
import time
from operator import methodcaller
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from pbg_tasks.errors import ConflictError, FormatError, StorageError
from pbg_tasks.formats.memory import empty_rows
from pbg_tasks.progress import say
from pbg_tasks.training.data.partitions import PartitionKey
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.ranks.partitions.backlog import Backlog

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pbg_tasks.training.ranks.transport.frames import Array
    from pbg_tasks.training.ranks.transport.wire import Connection, Message


_MATRIX = 2  # dimensions
_copied = methodcaller("copy")
_LATE = 1.5  # intervals after which a late write is logged, once
_PATIENCE_SECONDS = 5.0  # for a write under way at the end; partitions not stored then are lost, so flush before


class Held(NamedTuple):
    """A partition on a server.

    Attributes:
        table: its rows, which are never written to again.
        lease: number of the lease under which it was trained last, which is its generation.
    """

    table: Table
    lease: int


def owner(key: PartitionKey, servers: int) -> int:
    """Return the index of the server of a partition: PBG's rule."""
    return key.partition % servers


def memory_for(index: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return memory for an array of a table that is received.

    Embeddings are aligned like those that are trained.
    """
    return empty_rows(*shape) if index == 0 and len(shape) == _MATRIX else np.empty(shape, dtype)


class PartitionServer:
    """Partitions in memory: the service "partitions".

    All threads may call it. It works while its ``with`` block runs.

    A table is never changed, only replaced, so that it can be sent and stored while the next one arrives.

    Args:
        store: called as ``store(key, table, lease)`` by one thread, the oldest change first; it stores a generation
            where it outlives this process, and reports it to the coordinator.
        interval: seconds within which ``store`` begins with a partition, unless the store is slower than the training.
        on_error: called in another thread with the error that ended the storing.
    """

    def __init__(
        self,
        store: Callable[[PartitionKey, Table, int], None],
        *,
        interval: float,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._store, self._on_error = store, on_error
        self._held: dict[PartitionKey, Held] = {}
        self._interval, self._backlog = interval, Backlog(interval)
        self._late = False
        self._changed = threading.Condition()
        self._hurry = 0  # number of callers that wait for everything to be stored
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="write-behind", daemon=True)

    def get(self, key: PartitionKey, copy: Callable[[Table], Table] = _copied) -> Held | None:
        """Return a copy of a partition; None before the first ``put``.

        Args:
            key: the partition.
            copy: makes the copy.
        """
        with self._changed:
            held = self._held.get(key)
        return None if held is None else Held(copy(held.table), held.lease)

    def put(self, key: PartitionKey, table: Table, lease: int, copy: Callable[[Table], Table] = _copied) -> None:
        """Keep a copy of a partition as the newest.

        Args:
            key: the partition.
            table: its rows.
            lease: number of the lease under which they were trained.
            copy: makes the copy.

        Raises:
            ConflictError: a later lease has put it, because this rank's bucket was leased to another.
            PbgError: the error that ended the storing.
        """
        self._keep(key, Held(copy(table), lease))

    def tables(self) -> list[Table]:
        """Return all partitions as they are kept; none may be changed."""
        with self._changed:
            return [held.table for held in self._held.values()]

    def flush(self, timeout: float, *, each: bool = False) -> None:
        """Store every changed partition at once, and wait for it.

        Args:
            timeout: seconds.
            each: whether they begin anew with every partition that is stored.

        Raises:
            StorageError: it took longer; storing continues.
            PbgError: the error that ended the storing.
        """
        with self._changed:
            self._hurry += 1
            self._changed.notify_all()
            done = True
            while done and self._backlog and not self._error:
                done = self._wait_stored(len(self._backlog) - 1 if each else 0, timeout)
            self._hurry -= 1
            self._check()
            if not done:
                raise StorageError(
                    f"partition server: {len(self._backlog)} partitions are not stored after {timeout:g} s, the oldest "
                    f"of {self._backlog.age(time.monotonic()):.0f} s ago; the store is slow or hangs"
                )

    def _wait_stored(self, most: int, timeout: float) -> bool:
        """Wait until so many partitions are left, or storing has failed."""
        return self._changed.wait_for(lambda: self._error is not None or len(self._backlog) <= most, timeout)

    def serve(self, connection: Connection) -> None:
        """Answer the requests of one rank.

        Raises:
            RankLostError: the rank has ended.
            ConflictError: its bucket was leased to another rank.
            PbgError: the error that ended the storing.
        """
        while True:
            self._answer(connection, connection.receive(timeout=None, into=memory_for))

    def _answer(self, connection: Connection, message: Message) -> None:
        match message.kind:
            case "get":
                with self._changed:
                    held = self._held.get(_key(message))
                if held is None:
                    connection.send("absent")
                else:
                    connection.send("table", *held.table.to_arrays(), lease=held.lease)
            case "put":
                self._keep(_key(message), Held(_table(message), int(message.fields["lease"])))
                connection.send("ok")
            case _:
                raise FormatError(f"partition server: there is no request {message.kind!r}")

    def _keep(self, key: PartitionKey, brought: Held) -> None:
        with self._changed:
            self._check()
            before = self._held.get(key)
            if before is not None and brought.lease < before.lease:
                raise ConflictError(
                    f"partition {key.partition} of {key.entity}: lease {brought.lease} brings it, but lease "
                    f"{before.lease} has brought it since; this rank was taken for lost and has to end"
                )
            self._held[key] = brought
            self._backlog.add(key, time.monotonic())
            self._changed.notify_all()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_PATIENCE_SECONDS)

    # The methods below run in the thread that stores.

    def _work(self) -> None:
        try:
            while (todo := self._next()) is not None:
                self._store(*todo)
                del todo  # releases the table, which may have been replaced
                with self._changed:
                    self._backlog.end(time.monotonic())
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - raised again by ``put`` and ``flush``
            with self._changed:
                self._error = error
                self._changed.notify_all()
            self._on_error(error)

    def _next(self) -> tuple[PartitionKey, Table, int] | None:
        """Wait for a partition to store; None at the end."""
        with self._changed:
            while not self._closed:
                begin = self._backlog.begin_at()
                now = time.monotonic()
                if begin is not None and (self._hurry or begin <= now):
                    self._report_late(now)
                    key = self._backlog.begin(now)
                    return key, *self._held[key]
                self._changed.wait(None if begin is None else begin - now)
        return None

    def _report_late(self, now: float) -> None:
        late = self._backlog.age(now)
        if not self._late and late > _LATE * self._interval + 1:
            self._late = True
            say(
                f"partitions are stored {late:.0f} s after they came (store_interval: {self._interval:g} s): the store "
                "takes less than is trained, and as much would be trained again if this rank were lost"
            )


def _key(message: Message) -> PartitionKey:
    return PartitionKey(str(message.fields["entity"]), int(message.fields["partition"]))


def _table(message: Message) -> Table:
    embeddings, sums = message.arrays
    if embeddings.ndim != _MATRIX or sums.shape != embeddings.shape[:1]:
        raise FormatError(
            f"partition server: {_key(message)} comes with arrays of shapes {embeddings.shape} and {sums.shape}"
        )
    return Table.from_arrays(embeddings, sums)
