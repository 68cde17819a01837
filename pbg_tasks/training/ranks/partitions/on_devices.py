"""Partitions that the devices of one process pass on to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.errors import ResourceError
from pbg_tasks.training.engine.resident import PlacedTable, on_host

if TYPE_CHECKING:
    from pbg_tasks.training.data.partitions import PartitionKey
    from pbg_tasks.training.data.tables import Table
    from pbg_tasks.training.engine.resident import ResidentDevice
    from pbg_tasks.training.ranks.partitions.server import Held, PartitionServer


class DevicePartitions:
    """Access of one device to the partitions of all.

    Several threads may use it. Between two buckets a partition is in the memory of the device that trained it, as far
    as that has room, else in the host's.

    Args:
        server: keeps and stores them.
        place: the device.
        trained: bytes of the tables that it has for its buckets, which share the room with those that wait.
    """

    def __init__(self, server: PartitionServer, place: ResidentDevice, *, trained: int) -> None:
        self._server, self._place = server, place
        self._trained = trained

    def get(self, key: PartitionKey) -> Held | None:
        """Return a partition on this device, to be trained in place.

        None is returned before any device has put it.

        Raises:
            ResourceError: the device has not enough memory.
        """
        return self._server.get(key, self._place.take)

    def put(self, key: PartitionKey, table: Table, lease: int) -> None:
        """Put a partition that this device trained under a lease.

        Raises:
            ConflictError: a later lease has put it.
            PbgError: the error for which nothing more is stored.
        """
        self._server.put(key, table, lease, self._kept)

    def _kept(self, table: Table) -> Table:
        waiting = [
            each for each in self._server.tables() if isinstance(each, PlacedTable) and each.place is self._place
        ]
        if self._trained + sum(map(_size, [table, *waiting])) <= self._place.room:
            try:
                return self._place.take(table)
            except ResourceError:  # steps, or other programs, have the memory
                pass
        return on_host(table)


def _size(table: Table) -> int:
    return table.embeddings.nbytes + table.row_sums.nbytes
