"""Leases of buckets that share no partition (PBG's lock server).

The module only keeps records, without threads, clock or I/O, so that ``benchmarks/scaling`` simulates a gang with the
coordinator's own code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pbg_tasks.errors import ConfigError
from pbg_tasks.progress import say
from pbg_tasks.training.data.partitions import Layout, PartitionKey, partition_keys
from pbg_tasks.training.schedule import Bucket

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from pbg_tasks.config import ModelConfig


class Lease(NamedTuple):
    """Right of one rank to train a bucket.

    Attributes:
        number: number that rises with every grant, so that of two leases that trained a partition the later has the
            higher.
        rank: rank that trains the bucket.
        bucket: bucket that is trained.
        keys: partitions of the bucket, which no other lease has; types with one partition are shared, and not listed.
        last: those of ``keys`` that no other bucket of the iteration needs any more.
    """

    number: int
    rank: int
    bucket: Bucket
    keys: frozenset[PartitionKey]
    last: frozenset[PartitionKey]


class LeaseBook:
    """Record of the leases of one iteration.

    A rank with a lease may reserve the bucket after it, whose partitions it then reads in advance. A reservation is no
    lease: a rank that would get no bucket otherwise takes reserved partitions, which ends the reservation. So no rank
    waits for another's reservation, and what was read in advance counts only for the bucket that is leased.

    A bucket may be leased when no active lease has a partition that it needs. Among those buckets, the one that costs
    the rank least I/O after ``old`` is chosen: the fewest entities in partitions that it has to read or write; among
    equal ones the first in ``buckets``. A partition counts as its type's mean, as in PBG, because otherwise small
    differences in size would determine the order.

    Args:
        config: the partitions that buckets need.
        counts: number of entities of every partition.
        buckets: all buckets of the iteration, the preferred ones first.
        done: those of them that an earlier gang has trained and stored.
        trained: partitions that were trained since the start of the run, in addition to those of ``done``.
        tree: whether a bucket has to wait until all left-hand or all right-hand partitions that it needs were trained,
            so that all vectors grow out of one start and share one space (``distributed_tree_init_order``); right for
            the first iteration of a cold start only.
        first_number: number of the first lease.

    Attributes:
        active: the lease of each rank that has one.
        left: number of buckets that are not done, including leased ones.
        reserved: the bucket that each rank has reserved, if any.
    """

    def __init__(
        self,
        config: ModelConfig,
        counts: Mapping[PartitionKey, int],
        buckets: Sequence[Bucket],
        *,
        done: Collection[Bucket] = (),
        trained: Collection[PartitionKey] = (),
        tree: bool,
        first_number: int = 1,
    ) -> None:
        self.active: dict[int, Lease] = {}
        self.reserved: dict[int, Bucket] = {}
        self.left = len(buckets) - len(done)
        self._buckets, self._tree = buckets, tree
        self._next_number = first_number
        self._places = {bucket: place for place, bucket in enumerate(buckets)}
        self._keys = [key for key in partition_keys(config) if config.entities[key.entity].num_partitions > 1]
        self._open = np.ones(len(buckets), bool)
        self._open[[self._places[bucket] for bucket in done]] = False

        lhs, rhs = Layout(config).sides(Bucket(0, 0))
        place_of = {key: place for place, key in enumerate(self._keys)}
        # Partitions that each bucket needs, as places in _keys: shapes (types, buckets).
        self._lhs_TB = _needed(place_of, lhs, [bucket.lhs for bucket in buckets])
        self._rhs_TB = _needed(place_of, rhs, [bucket.rhs for bucket in buckets])
        self._needs_TB = np.concatenate([self._lhs_TB, self._rhs_TB])
        # The entities of each; none where the left-hand side already has the same partition.
        weights = np.array(_mean_counts(self._keys, counts), np.int64)
        twice_TB = (self._rhs_TB[:, None] == self._lhs_TB).any(axis=1)
        rhs_weights_TB = np.where(twice_TB, 0, weights[self._rhs_TB])
        self._weights_TB = np.concatenate([weights[self._lhs_TB], rhs_weights_TB])

        # Number of open buckets that need each partition.
        self._wanted = np.bincount(self._needs_TB[:, self._open].ravel(), minlength=len(self._keys))
        # Number of locks of each partition, all of one rank: of its lease, and of earlier ones in ``_underway``.
        self._locks = np.zeros(len(self._keys), int)
        self._underway: dict[int, NDArray[np.intp]] = {}  # by lease, partitions that are not put away
        self._reserving = np.zeros(len(self._keys), bool)  # partitions of reserved buckets
        self._trained = np.zeros(len(self._keys), bool)
        self._trained[[place_of[key] for key in trained if key in place_of]] = True
        self._trained[self._needs_TB[:, ~self._open]] = True

    @property
    def finished(self) -> bool:
        """Whether all buckets are done, and their partitions put away."""
        return not self.left and not self._underway

    def reserve(self, rank: int) -> Bucket | None:
        """Reserve the bucket that a rank trains after its present one.

        The rank keeps partitions that it has leased. All others are neither leased nor reserved, so they stay as they
        are until the rank's next lease or the end of the reservation.

        Args:
            rank: rank that has a lease.

        Returns:
            The reserved bucket, also where it was reserved before; None where there is none.

        Raises:
            KeyError: the rank has no lease.
        """
        bucket = self.active[rank].bucket
        if rank not in self.reserved:
            own = self._needs_TB[:, self._places[bucket]]
            shut, trained = (self._locks > 0) | self._reserving, self._trained.copy()
            shut[own] = False
            trained[own] = True  # by then
            places = self._candidates(shut, trained, idle=False)
            if not places.size:
                return None
            place = int(places[self._costs(places, bucket).argmin()])
            self.reserved[rank] = self._buckets[place]
            self._reserving[self._needs_TB[:, place]] = True
        return self.reserved[rank]

    def acquire(self, rank: int, old: Bucket | None) -> Lease | None:
        """Lease a bucket: the one that the rank has reserved, if any.

        Args:
            rank: rank that requests a bucket; it has no lease.
            old: the bucket whose partitions it still has in memory, if any.

        Returns:
            The lease; None when all buckets are done, or none may be leased now, so that the rank has to ask again.
        """
        if rank in self.active:
            raise RuntimeError(f"rank {rank} asks for a bucket while it has {self.active[rank].bucket}: a bug")
        place = self._choice(rank, old)
        if place is None:
            return None
        needed = self._needs_TB[:, place]
        self._open[place] = False
        np.subtract.at(self._wanted, needed, 1)
        self._locks[np.unique(needed)] += 1
        keys = frozenset(self._keys[key] for key in needed)
        last = frozenset(self._keys[key] for key in needed[self._wanted[needed] == 0])
        lease = Lease(self._next_number, rank, self._buckets[place], keys, last)
        self._next_number += 1
        self.active[rank] = lease
        return lease

    def _choice(self, rank: int, old: Bucket | None) -> int | None:
        """Choose a rank's next bucket; end reservations that it breaks."""
        if rank in self.reserved:
            place = self._places[self.reserved[rank]]
            self._cancel([rank])
            return place
        locked = self._locks > 0
        idle = not (self.active or self._underway)
        places = self._candidates(locked | self._reserving, self._trained, idle=idle and not self.reserved)
        if places.size:
            return int(places[self._costs(places, old).argmin()])
        places = self._candidates(locked, self._trained, idle=idle) if self.reserved else places
        if not places.size:
            return None
        place = int(places[self._costs(places, old).argmin()])
        needed = self._needs_TB[:, place]
        held = {other: self._needs_TB[:, self._places[bucket]] for other, bucket in self.reserved.items()}
        self._cancel([other for other, keys in held.items() if np.isin(keys, needed).any()])
        return place

    def _cancel(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self.reserved.pop(rank, None)
        self._reserving[:] = False
        for bucket in self.reserved.values():
            self._reserving[self._needs_TB[:, self._places[bucket]]] = True

    def release(self, rank: int, *, underway: bool = False) -> Lease:
        """End the lease of a rank whose bucket is done.

        Args:
            rank: rank that has trained it.
            underway: whether its partitions stay locked until ``put_away``. Until then the rank alone may train those
                of them that its reserved bucket needs.

        Raises:
            KeyError: the rank has no lease.
        """
        lease, keys = self._end(rank)
        self._trained[keys] = True
        self.left -= 1
        if underway:
            self._underway[lease.number] = keys
        else:
            self._locks[keys] -= 1
        return lease

    def put_away(self, number: int) -> None:
        """Unlock the partitions of a released lease.

        Raises:
            KeyError: they are not locked.
        """
        self._locks[self._underway.pop(number)] -= 1

    def give_back(self, rank: int) -> Lease:
        """End the lease of a rank whose bucket is not done.

        The bucket may be leased again, and the rank's reservation ends.

        Raises:
            KeyError: the rank has no lease.
        """
        lease, keys = self._end(rank)
        self._cancel([rank])
        place = self._places[lease.bucket]
        self._locks[keys] -= 1
        self._open[place] = True
        np.add.at(self._wanted, self._needs_TB[:, place], 1)
        return lease

    def _end(self, rank: int) -> tuple[Lease, NDArray[np.intp]]:
        lease = self.active.pop(rank)
        return lease, np.unique(self._needs_TB[:, self._places[lease.bucket]])

    def _candidates(self, shut: NDArray[np.bool_], trained: NDArray[np.bool_], *, idle: bool) -> NDArray[np.intp]:
        """Return the ascending places of the buckets that may be leased.

        Args:
            shut: partitions that they may not need.
            trained: partitions that count as trained.
            idle: whether nothing is trained, put away or reserved, so that any bucket may be the first.
        """
        mask: NDArray[np.bool_] = self._open & ~shut[self._needs_TB].any(axis=0)
        if self._tree:
            connected = mask & (trained[self._lhs_TB].all(axis=0) | trained[self._rhs_TB].all(axis=0))
            # Partitions that PBG counts as trained while they still are being trained are locked, which has the same
            # effect.
            if not idle or connected.any():
                mask = connected
        return np.flatnonzero(mask)

    def _costs(self, places: NDArray[np.intp], old: Bucket | None) -> NDArray[np.int64]:
        """Return the cost of going from ``old`` to each bucket.

        The cost of giving up all of ``old`` is left out, because it is the same for each.
        """
        held = np.zeros(len(self._keys), bool)
        if old is not None:
            held[self._needs_TB[:, self._places[old]]] = True
        needs, weights = (array.take(places, axis=1) for array in (self._needs_TB, self._weights_TB))
        costs: NDArray[np.int64] = np.where(held[needs], -weights, weights).sum(axis=0)
        return costs


def useful_ranks(config: ModelConfig) -> int:
    """Return the number of ranks that can train at once.

    It holds for most of an iteration; further ranks would wait.

    A bucket takes two of the partitions of a type that is on both sides, so half as many buckets as there are
    partitions are disjoint. With different types on the sides the smaller number of partitions counts, and types with
    one partition are no limit.
    """
    counts = (config.partitions("lhs"), config.partitions("rhs"))
    limit = min((count for count in counts if count > 1), default=1)
    return max(1, limit // 2 if Layout(config).rooms().shared else limit)


def check_useful(config: ModelConfig, world: int, trainers: str, *, report: bool = True) -> None:
    """Check that several trainers can train at once.

    Args:
        config: has the numbers of partitions.
        world: number of trainers.
        trainers: their kind, for messages.
        report: name those that will wait.

    Raises:
        ConfigError: there would never be work for more than one.
    """
    limit = useful_ranks(config)
    if limit == 1 and world > 1:
        raise ConfigError(
            f"{world} {trainers} cannot train at once: every bucket needs the same partition; raise num_partitions to "
            f"{2 * world} or more, or train with one of them"
        )
    if world > limit and report:
        say(f"with these num_partitions only {limit} of {world} {trainers} have a bucket at any time; the others wait")


def _needed(
    place_of: Mapping[PartitionKey, int], types: Mapping[str, PartitionKey], indices: list[int]
) -> NDArray[np.intp]:
    """Return the places of partitions, shape (types, indices).

    They are the partitions with these indices of each partitioned type.
    """
    firsts = [place_of[PartitionKey(name, 0)] for name in types if PartitionKey(name, 0) in place_of]
    return np.array(firsts, np.intp)[:, None] + np.array(indices, np.intp)


def _mean_counts(keys: Sequence[PartitionKey], counts: Mapping[PartitionKey, int]) -> list[int]:
    """Return each partition's rounded mean of its type, at least 1."""
    of_type: dict[str, list[int]] = {}
    for key in keys:
        of_type.setdefault(key.entity, []).append(counts[key])
    means = {name: max(1, round(sum(listed) / len(listed))) for name, listed in of_type.items()}
    return [means[key.entity] for key in keys]
