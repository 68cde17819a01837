"""Server of shared parameters, which adds up the changes of all ranks."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from pbg_tasks.errors import ConflictError
from pbg_tasks.training.ranks.parameters.segments import Segments, pack

if TYPE_CHECKING:
    from pbg_tasks.training.ranks.transport.wire import Connection, Message


class ParameterUpdate(NamedTuple):
    """Changes that a rank does not know yet.

    Attributes:
        versions: int64 (K,), versions of every segment of the shard.
        values: float32, the segments that others have changed since the rank's versions, end to end.
    """

    versions: np.ndarray
    values: np.ndarray


class ParameterStore(Protocol):
    """Store of shards: the server of this rank, or of another one."""

    def seed(self, key: str, lengths: np.ndarray, values: np.ndarray) -> None:
        """Set a shard, in place of its old values.

        Args:
            key: key of the shard in the plan.
            lengths: int64 (K,), numbers in each segment.
            values: float32, the segments end to end.
        """
        ...

    def swap(self, key: str, versions: np.ndarray, changed: np.ndarray, deltas: np.ndarray) -> ParameterUpdate:
        """Add the changes of a rank, and return those of others.

        Args:
            key: key of the shard in the plan.
            versions: int64 (K,), the versions that the rank knows.
            changed: bool (K,), the segments of ``deltas``.
            deltas: float32, changes to add to these, end to end.

        Raises:
            ConflictError: the server has no such shard.
            RankLostError: the server did not answer. It may have added ``deltas`` or not, so the call must not be
                repeated.
        """
        ...


class ParameterServer:
    """Shards that this rank keeps; all threads may call it."""

    def __init__(self) -> None:
        self._shards: dict[str, _Shard] = {}
        self._lock = threading.Lock()

    def seed(self, key: str, lengths: np.ndarray, values: np.ndarray) -> None:
        """Set a shard; see ``ParameterStore``."""
        with self._lock:
            before = self._shards.get(key)
            self._shards[key] = _Shard(lengths, values, first=1 if before is None else before.newest + 1)

    def swap(self, key: str, versions: np.ndarray, changed: np.ndarray, deltas: np.ndarray) -> ParameterUpdate:
        """Add changes and return those of others; see ``ParameterStore``."""
        with self._lock:
            shard = self._shards.get(key)
        if shard is None:
            raise ConflictError(
                "shared parameters: a rank asks for some that this server was never given; the ranks do not train the "
                "same model, or one began before rank 0 had set them"
            )
        return shard.swap(versions, changed, deltas)

    def serve(self, connection: Connection) -> None:
        """Answer the requests of one rank.

        Raises:
            RankLostError: the rank has ended.
            ConflictError: it requested a shard that is not here, or is not rank 0 and sent one.
        """
        while True:
            self._answer(connection, connection.receive(timeout=None))

    def _answer(self, connection: Connection, message: Message) -> None:
        key: str = message.fields["shard"]
        if message.kind == "swap":
            connection.send("news", *self.swap(key, *message.arrays))
        elif message.kind == "seed" and connection.peer.rank == 0:
            self.seed(key, *message.arrays)
            connection.send("ok")
        else:
            raise ConflictError(
                f"shared parameters: rank {connection.peer.rank} sent {message.kind!r}, which is not its part"
            )


class _Shard:
    """Values and versions; a version rises with every change of its segment."""

    def __init__(self, lengths: np.ndarray, values: np.ndarray, *, first: int) -> None:
        self._segments, self._values = Segments(lengths), values.copy()
        self._versions = np.full(len(lengths), first)
        self._lock = threading.Lock()

    @property
    def newest(self) -> int:
        return int(self._versions.max(initial=0))

    def swap(self, versions: np.ndarray, changed: np.ndarray, deltas: np.ndarray) -> ParameterUpdate:
        with self._lock:
            for there, packed in self._segments.runs(changed):
                self._values[there] += deltas[packed]
            self._versions += changed
            # a rank that alone changed a segment already knows its value
            unknown = self._segments.runs(self._versions != versions + changed)
            return ParameterUpdate(self._versions.copy(), pack(self._values, unknown))
