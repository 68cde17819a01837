"""Client of the partition servers, each of which is a rank.

The rank may be this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.errors import ConfigError
from pbg_tasks.memory.tables import table_bytes
from pbg_tasks.progress import human_count
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.ranks.partitions.server import Held, PartitionServer, memory_for, owner
from pbg_tasks.training.ranks.transport.connection import LIMIT
from pbg_tasks.training.ranks.transport.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.training.data.partitions import PartitionKey
    from pbg_tasks.training.ranks.transport.renewal import Requester
    from pbg_tasks.training.ranks.transport.wire import Message

_SILENCE_SECONDS = 30.0  # after which a server counts as lost


class PartitionClient:
    """All partition servers as one; several threads may use it.

    Args:
        servers: in the same order on every rank; a rank's own needs no connection.

    Attributes:
        traffic: counter of the transferred bytes.
    """

    def __init__(self, servers: Sequence[Requester | PartitionServer]) -> None:
        self.traffic = Traffic()
        self._stores: list[PartitionServer | _RemotePartitions] = [
            server if isinstance(server, PartitionServer) else _RemotePartitions(server, self.traffic)
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

    def _store(self, key: PartitionKey) -> PartitionServer | _RemotePartitions:
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

    def __init__(self, connection: Requester, traffic: Traffic) -> None:
        self._connection, self._traffic = connection, traffic

    def get(self, key: PartitionKey) -> Held | None:
        answer = self._ask("get", key)
        if answer.kind == "absent":
            return None
        return Held(Table.from_arrays(*answer.arrays), int(answer.fields["lease"]))

    def put(self, key: PartitionKey, table: Table, lease: int) -> None:
        self._ask("put", key, *table.to_arrays(), lease=lease)

    def _ask(self, kind: str, key: PartitionKey, *arrays: np.ndarray, **fields: int) -> Message:
        with self._traffic.request() as sizes:
            answer = self._connection.request(
                kind, *arrays, timeout=_SILENCE_SECONDS, into=memory_for, **key._asdict(), **fields
            )
            sizes.extend(array.nbytes for array in (*arrays, *answer.arrays))
        return answer
