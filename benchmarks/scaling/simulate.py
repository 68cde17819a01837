"""A gang's iteration as a sequence of events.

The ``LeaseBook`` is the real one; times and transfers are computed.

Not simulated: shared parameters, which travel beside the training and are small; edges, which are read while partitions
come; the death of a rank.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.scaling.links import MemoryExchange, Recorder, StoreExchange
from pbg_tasks.training.data.partitions import Layout
from pbg_tasks.training.ranks.leases import LeaseBook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from benchmarks.scaling.links import Exchange, Network
    from pbg_tasks.config import ModelConfig
    from pbg_tasks.training.data.partitions import PartitionKey
    from pbg_tasks.training.ranks.leases import Lease
    from pbg_tasks.training.schedule import Bucket


@dataclass(frozen=True, slots=True)
class Work:
    """One iteration.

    Attributes:
        config: decides what buckets need.
        seconds: for one rank to train each bucket, in the order in which the book prefers them.
        counts: entities of each partition.
        row_bytes: of an entity's vector and optimizer sum.
    """

    config: ModelConfig
    seconds: Mapping[Bucket, float]
    counts: Mapping[PartitionKey, int]
    row_bytes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of an iteration.

    Attributes:
        seconds: up to its commit.
        trained: rank-seconds of training.
        waited: rank-seconds without a lease, to the end of the last bucket.
        moved: bytes.
        ranks: trainers.
    """

    seconds: float
    trained: float
    waited: float
    moved: float
    ranks: int

    @property
    def speed_up(self) -> float:
        """Ratio of its speed to that of one rank that never waits."""
        return self.trained / self.seconds

    @property
    def busy(self) -> float:
        """Share of the time in which a rank trains."""
        return self.speed_up / self.ranks

    @property
    def waiting(self) -> float:
        """Share of the time in which a rank has no bucket."""
        return self.waited / self.seconds / self.ranks


def simulate(work: Work, ranks: int, network: Network, *, servers: int, ahead: bool = False) -> Outcome:
    """Simulate an iteration.

    Args:
        work: what is trained.
        ranks: trainers.
        network: that carries partitions.
        servers: ``num_partition_servers``: 0 for the store, -1 for the trainers, else that many dedicated ones.
        ahead: ``partitions_ahead``: whether partitions come and go behind the training.
    """
    sizes = {key: count * work.row_bytes for key, count in work.counts.items()}
    exchange: Exchange = (
        MemoryExchange(network, ranks, max(servers, 0), sizes) if servers else StoreExchange(network, ranks, sizes)
    )
    return _Gang(work, ranks, network, exchange, sizes, ahead=ahead).run()


class _Gang:
    def __init__(
        self,
        work: Work,
        ranks: int,
        network: Network,
        exchange: Exchange,
        sizes: Mapping[PartitionKey, float],
        *,
        ahead: bool,
    ) -> None:
        self._work, self._ranks, self._network, self._exchange = work, ranks, network, exchange
        self._sizes, self._looks_ahead = sizes, ahead
        self._recorder = Recorder(network.record)
        self._book = LeaseBook(work.config, work.counts, list(work.seconds), tree=False)
        self._events: list[tuple[float, int, Callable[[int, float], None], int]] = []
        self._sequence = itertools.count()  # events of one moment happen in the order in which they were planned
        self._last: dict[PartitionKey, int] = {}  # the rank that trained it last, and so has it in memory
        self._old: dict[int, Lease] = {}
        self._idle: dict[int, float] = {}  # since when
        self._ahead: dict[int, tuple[Bucket, float]] = {}  # reserved bucket of each rank, and when its partitions come
        self._away: dict[int, float] = {}  # when the partitions of the rank's bucket before are put away
        self._waited = 0.0

    def run(self) -> Outcome:
        for rank in range(self._ranks):
            self._plan(0.0, self._ask, rank)
        self._plan(self._network.store_interval, self._write_behind)
        now = 0.0
        while not self._book.finished:
            now, _, happens, rank = heapq.heappop(self._events)
            happens(rank, now)
        self._waited += sum(now - since for since in self._idle.values())
        return Outcome(
            self._recorder.record(self._exchange.finish(now)),
            sum(self._work.seconds.values()),
            self._waited,
            self._exchange.moved,
            self._ranks,
        )

    def _plan(self, when: float, happens: Callable[[int, float], None], rank: int = 0) -> None:
        heapq.heappush(self._events, (when, next(self._sequence), happens, rank))

    def _ask(self, rank: int, now: float) -> None:
        old = self._old.get(rank)
        lease = self._book.acquire(rank, old.bucket if old else None)
        if lease is None:
            self._idle.setdefault(rank, now)
            return
        self._waited += now - self._idle.pop(rank, now)
        recorded = self._recorder.record(now)
        reserved, comes = self._ahead.pop(rank, (None, 0.0))
        if reserved == lease.bucket:
            there = max(recorded, comes)
        else:
            there = self._exchange.fetch(rank, self._missing(rank, lease.keys), recorded)
        self._last |= dict.fromkeys(lease.keys, rank)
        self._old[rank] = lease
        if self._looks_ahead:
            self._plan(there, self._look_ahead, rank)
        self._plan(there + self._work.seconds[lease.bucket], self._hand_over, rank)

    def _look_ahead(self, rank: int, now: float) -> None:
        bucket = self._book.reserve(rank)
        if bucket is not None:
            comes = self._exchange.fetch(rank, self._missing(rank, self._keys(bucket)), now)
            self._ahead[rank] = bucket, comes

    def _keys(self, bucket: Bucket) -> set[PartitionKey]:
        config = self._work.config
        return {key for key in Layout(config).needs(bucket) if config.entities[key.entity].num_partitions > 1}

    def _missing(self, rank: int, keys: Iterable[PartitionKey]) -> list[PartitionKey]:
        return [key for key in sorted(keys) if not self._has(rank, key)]

    def _has(self, rank: int, key: PartitionKey) -> bool:
        return self._last.get(key) == rank and key in self._old[rank].keys

    def _hand_over(self, rank: int, now: float) -> None:
        if self._away.get(rank, now) > now:  # the partitions of one bucket at most are on their way
            self._plan(self._away[rank], self._hand_over, rank)
            return
        lease = self._old[rank]
        away = self._exchange.hand_over(rank, sorted(lease.keys), now)
        if rank not in self._ahead:
            self._plan(away, self._release, rank)
            return
        self._away[rank] = away
        kept = lease.keys & self._keys(self._ahead[rank][0])
        copied = now + max((self._sizes[key] for key in kept), default=0.0) / self._network.copy  # side by side
        self._plan(copied, self._release_early, rank)

    def _release_early(self, rank: int, now: float) -> None:
        self._plan(max(now, self._away[rank]), self._put_away, self._book.release(rank, underway=True).number)
        self._ask(rank, now)

    def _put_away(self, number: int, now: float) -> None:
        self._book.put_away(number)
        self._wake(now)

    def _release(self, rank: int, now: float) -> None:
        self._book.release(rank)
        self._ask(rank, now)
        self._wake(now)

    def _wake(self, now: float) -> None:
        for other, since in self._idle.items():
            self._plan(self._next_question(since, now), self._ask_again, other)

    def _next_question(self, since: float, now: float) -> float:
        poll = self._network.poll
        return since + math.ceil((now - since) / poll) * poll if poll else now

    def _ask_again(self, rank: int, now: float) -> None:
        if rank in self._idle:
            self._ask(rank, now)

    def _write_behind(self, _rank: int, now: float) -> None:
        self._exchange.write_behind(now)
        self._plan(now + self._network.store_interval, self._write_behind)
