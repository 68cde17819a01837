"""Links of the simulation, and the two ways of exchange.

A link carries one transfer after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pbg_tasks.training.data.partitions import PartitionKey


@dataclass(frozen=True, slots=True)
class Network:
    """Speed of a gang's network and store.

    Rates are bytes a second.

    Attributes:
        link: of a process, to others and from others at once.
        store: of a process, to the store and from the store at once.
        store_total: of the store, for all processes together, each way.
        latency: seconds of a request.
        record: seconds until progress is recorded in the store; whatever ends meanwhile shares the next record.
        poll: seconds after which a rank without a bucket asks again; 0 when it is notified at once.
        store_interval: seconds between a partition server's writes to the store.
        copy: of one partition into new memory, several side by side.
    """

    link: float = 1.1e9
    store: float = 4e8
    store_total: float = 8e9
    latency: float = 0.01
    record: float = 0.1
    poll: float = 0.0
    store_interval: float = 60.0
    copy: float = 4e9


@dataclass(slots=True)
class Link:
    """Carries one transfer after the other."""

    rate: float
    _free: float = 0.0

    def carry(self, size: float, now: float) -> float:
        """Queue a transfer and return when it has ended."""
        self._free = max(self._free, now) + size / self.rate
        return self._free


@dataclass(slots=True)
class Recorder:
    """Makes one record at a time.

    Whatever comes meanwhile goes into the next one.
    """

    seconds: float
    _begins: float = float("-inf")  # begin of the last record so far

    def record(self, now: float) -> float:
        """Return when progress that is reported now has been recorded."""
        if now > self._begins:
            self._begins = max(now, self._begins + self.seconds)
        return self._begins + self.seconds


class Exchange(Protocol):
    """Hands partitions from rank to rank.

    Attributes:
        moved: bytes carried between processes, and to and from the store.
    """

    moved: float

    def fetch(self, rank: int, keys: Iterable[PartitionKey], now: float) -> float:
        """Bring partitions to a rank; return when they are there."""
        ...

    def hand_over(self, rank: int, keys: Iterable[PartitionKey], now: float) -> float:
        """Take a rank's partitions; return when others may have them."""
        ...

    def write_behind(self, now: float) -> None:
        """Perform the work of every ``store_interval`` seconds."""
        ...

    def finish(self, now: float) -> float:
        """Store all that is unstored; return when it is stored."""
        ...


class StoreExchange:
    """Every partition is stored after every bucket (``num_partition_servers: 0``)."""

    def __init__(self, network: Network, ranks: int, sizes: Mapping[PartitionKey, float]) -> None:
        self.moved = 0.0
        self._network, self._sizes = network, sizes
        self._up, self._down = ([Link(network.store) for _ in range(ranks)] for _ in range(2))
        self._all_up, self._all_down = Link(network.store_total), Link(network.store_total)

    def fetch(self, rank: int, keys: Iterable[PartitionKey], now: float) -> float:
        """Read them from the store."""
        return self._carry((self._down[rank], self._all_down), keys, now)

    def hand_over(self, rank: int, keys: Iterable[PartitionKey], now: float) -> float:
        """Write them."""
        return self._carry((self._up[rank], self._all_up), keys, now)

    def write_behind(self, now: float) -> None:
        """Do nothing: everything is stored already."""

    def finish(self, now: float) -> float:
        """Return at once: everything is stored."""
        return now

    def _carry(self, links: Iterable[Link], keys: Iterable[PartitionKey], now: float) -> float:
        size = sum(self._sizes[key] for key in keys)
        self.moved += size
        return max(link.carry(size, now) for link in links) + self._network.latency if size else now


@dataclass(slots=True)
class _Server:
    """State of a partition server.

    Its process, its unstored partitions, and the end of its present storing.
    """

    process: int
    dirty: set[PartitionKey] = field(default_factory=set)
    storing_until: float = 0.0


class MemoryExchange:
    """Exchange in which partition p stays with a server.

    It is server p % servers, which writes to the store in the background.

    Args:
        network: that carries them.
        ranks: trainers, processes 0 to ``ranks`` - 1.
        servers: dedicated processes; 0 when the trainers themselves serve (``num_partition_servers: -1``).
        sizes: bytes of each partition.
    """

    def __init__(self, network: Network, ranks: int, servers: int, sizes: Mapping[PartitionKey, float]) -> None:
        self.moved = 0.0
        self._network, self._sizes = network, sizes
        processes = ranks + servers
        self._servers = [_Server(process) for process in (range(ranks, processes) if servers else range(ranks))]
        self._out, self._into = ([Link(network.link) for _ in range(processes)] for _ in range(2))
        self._up, self._all_up = [Link(network.store) for _ in range(processes)], Link(network.store_total)

    def fetch(self, rank: int, keys: Iterable[PartitionKey], now: float) -> float:
        """Pull them from their servers."""
        return max((self._carry(self._owner(key).process, rank, key, now) for key in keys), default=now)

    def hand_over(self, rank: int, keys: Iterable[PartitionKey], now: float) -> float:
        """Push them to their servers."""
        end = now
        for key in keys:
            server = self._owner(key)
            server.dirty.add(key)
            end = max(end, self._carry(rank, server.process, key, now))
        return end

    def write_behind(self, now: float) -> None:
        """Let every idle server store its new contents.

        Ranks do not wait for that, but share its link.
        """
        for server in self._servers:
            if server.storing_until <= now:
                self._store(server, now)

    def finish(self, now: float) -> float:
        """Store the rest."""
        return max(self._store(server, now) for server in self._servers)

    def _owner(self, key: PartitionKey) -> _Server:
        return self._servers[key.partition % len(self._servers)]

    def _carry(self, source: int, target: int, key: PartitionKey, now: float) -> float:
        if source == target:
            return now
        self.moved += self._sizes[key]
        links = (self._out[source], self._into[target])
        return max(link.carry(self._sizes[key], now) for link in links) + self._network.latency

    def _store(self, server: _Server, now: float) -> float:
        size = sum(self._sizes[key] for key in server.dirty)
        server.dirty.clear()
        self.moved += size
        links = (self._out[server.process], self._up[server.process], self._all_up)
        server.storing_until = max(link.carry(size, now) for link in links)
        return server.storing_until
