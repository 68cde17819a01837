"""Client of the partition servers, each of which is a rank.

The rank may be this one.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from pbg_tasks.errors import ConfigError
from pbg_tasks.memory.tables import table_bytes
from pbg_tasks.progress import human_count
from pbg_tasks.training.data.partitions import PartitionKey
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.ranks.partitions.server import Held, PartitionServer, memory_for, owner
from pbg_tasks.training.ranks.transport.connection import LIMIT
from pbg_tasks.training.ranks.transport.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.training.ranks.transport.renewal import Requester
    from pbg_tasks.training.ranks.transport.wire import Message


class PartitionHolder(Protocol):
    """Interface of a ``PartitionServer``, on this rank or another."""

    def get(self, key: PartitionKey) -> Held | None:
        """Return a copy of a partition; None before the first ``put``."""
        ...

    def put(self, key: PartitionKey, table: Table, lease: int) -> None:
        """Keep a copy of a partition as the newest."""
        ...

    def held(self) -> dict[PartitionKey, int]:
        """Return the generations by partition."""
        ...

    def flush(self, timeout: float) -> None:
        """Store at once every changed partition, and wait for it."""
        ...

    def drop_all(self) -> None:
        """Remove all partitions, which must be stored."""
        ...


class PartitionClient:
    """All partition servers as one; several threads may use it.

    Args:
        servers: in the same order on every rank; a rank's own needs no connection.
        timeout: seconds of silence after which a server counts as lost.

    Attributes:
        traffic: counter of the transferred bytes.
    """

    def __init__(self, servers: Sequence[Requester | PartitionServer], *, timeout: float = 30.0) -> None:
        self.traffic = Traffic()
        self._stores: list[PartitionHolder] = [
            server if isinstance(server, PartitionServer) else _RemotePartitions(server, self.traffic, timeout)
            for server in servers
        ]

    def get(self, key: PartitionKey) -> Held | None:
        """Return a partition, to be trained in place, and its generation.

        None is returned before any rank has put it.

        Raises:
            RankLostError: its server did not answer.
        """
        return self._store(key).get(key)

    def put(self, key: PartitionKey, table: Table, lease: int) -> None:
        """Put a partition that was trained under a lease.

        Raises:
            ConflictError: a later lease has put it, because this rank's bucket was leased to another.
            RankLostError: its server did not answer.
            PbgError: the error for which its server stores nothing more.
        """
        self._store(key).put(key, table, lease)

    def held(self) -> dict[PartitionKey, int]:
        """Return the generations of all partitions that are in memory.

        Raises:
            RankLostError: a server did not answer.
        """
        return {key: lease for store in self._stores for key, lease in store.held().items()}

    def flush(self, timeout: float) -> None:
        """Have all servers store every changed partition, side by side.

        Args:
            timeout: seconds.

        Raises:
            StorageError: a server took longer.
            RankLostError: a server did not answer.
        """
        with ThreadPoolExecutor(len(self._stores)) as threads:
            list(threads.map(lambda store: store.flush(timeout), self._stores))

    def drop_all(self) -> None:
        """Have every server remove its partitions.

        Raises:
            ConflictError: a partition is not stored.
            RankLostError: a server did not answer.
        """
        for store in self._stores:
            store.drop_all()

    def _store(self, key: PartitionKey) -> PartitionHolder:
        return self._stores[owner(key, len(self._stores))]


def check_sendable(config: ModelConfig, counts: Mapping[PartitionKey, int]) -> None:
    """Check that ranks can send each partition in one message.

    Args:
        config: the model.
        counts: number of entities of every partition.

    Raises:
        ConfigError: one is too large.
    """
    for key, count in counts.items() if config.num_partition_servers else ():
        size = table_bytes(config, key.entity, count)
        if config.entities[key.entity].num_partitions > 1 and size > LIMIT:
            raise ConfigError(
                f"entities.{key.entity}.num_partitions: partition {key.partition} takes {human_count(size)}B, and "
                f"ranks send at most {human_count(LIMIT)}B at once: raise it, or set num_partition_servers: 0"
            )


class _RemotePartitions:
    """Client of a remote ``PartitionServer``."""

    def __init__(self, connection: Requester, traffic: Traffic, timeout: float) -> None:
        self._connection, self._traffic = connection, traffic
        self._timeout = timeout

    def get(self, key: PartitionKey) -> Held | None:
        answer = self._ask("get", key)
        if answer.kind == "absent":
            return None
        return Held(Table.from_arrays(*answer.arrays), int(answer.fields["lease"]))

    def put(self, key: PartitionKey, table: Table, lease: int) -> None:
        self._ask("put", key, *table.to_arrays(), lease=lease)

    def held(self) -> dict[PartitionKey, int]:
        leases = self._connection.request("held", timeout=self._timeout).fields["leases"]
        return {PartitionKey(entity, partition): lease for entity, partition, lease in leases}

    def flush(self, timeout: float) -> None:
        self._connection.request("flush", timeout=timeout + self._timeout, seconds=timeout)

    def drop_all(self) -> None:
        self._connection.request("drop_all", timeout=self._timeout)

    def _ask(self, kind: str, key: PartitionKey, *arrays: np.ndarray, **fields: int) -> Message:
        with self._traffic.request() as sizes:
            answer = self._connection.request(
                kind, *arrays, timeout=self._timeout, into=memory_for, **key._asdict(), **fields
            )
            sizes.extend(array.nbytes for array in (*arrays, *answer.arrays))
        return answer
