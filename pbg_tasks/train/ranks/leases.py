"""Which rank trains which bucket: leases that share no partition (PBG's lock server).

Pure bookkeeping: no threads, no clock, no I/O; so ``benchmarks/scaling`` simulates a gang with the coordinator's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pbg_tasks.train.data.partitions import Layout, PartitionKey
from pbg_tasks.train.schedule import Bucket

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from pbg_tasks.config import ModelConfig


class Lease(NamedTuple):
    """A bucket that one rank trains.

    Attributes:
        number: rises with every grant, so that of two who trained a partition the later one has the higher.
        rank: who trains it.
        bucket: what is trained.
        keys: its partitions, which no other lease has; those of types with one partition are shared, and not here.
        last: of them, those that no other bucket of the iteration needs any more.
    """

    number: int
    rank: int
    bucket: Bucket
    keys: frozenset[PartitionKey]
    last: frozenset[PartitionKey]


class LeaseBook:
    """Leases the buckets of one iteration.

    A bucket may be leased when no active lease has a partition it needs. Of those that may, the one that costs the rank
    least I/O is chosen: the fewest entities in partitions that it has to read or write, going there from ``old``; of
    equal ones the first in ``buckets``. A partition counts as its type's mean, as in PBG: else small differences in
    size would settle the order.

    Args:
        config: says what buckets need.
        counts: entities of every partition.
        buckets: all of the iteration, the preferred ones first.
        done: of them, those an earlier gang has trained and stored.
        trained: partitions that have been trained from the start of the run on, beside those of ``done``.
        tree: whether a bucket has to wait until all left-hand or all right-hand partitions it needs have been trained,
            so that all vectors grow out of one start and lie in one space (``distributed_tree_init_order``); right
            for the first iteration of a cold start only.
        first_number: of the first lease.

    Attributes:
        active: the lease of each rank that has one.
        left: buckets not done, leased ones included.
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
        self.left = len(buckets) - len(done)
        self._buckets, self._tree, self._next_number = buckets, tree, first_number
        self._places = {bucket: place for place, bucket in enumerate(buckets)}
        self._keys = _partitioned(config)
        self._open = np.ones(len(buckets), bool)
        self._open[[self._places[bucket] for bucket in done]] = False

        lhs, rhs = Layout(config).sides(Bucket(0, 0))
        place_of = {key: place for place, key in enumerate(self._keys)}
        # What each bucket needs, as places in _keys: shapes (types, buckets).
        self._lhs_TB = _needed(place_of, lhs, [bucket.lhs for bucket in buckets])
        self._rhs_TB = _needed(place_of, rhs, [bucket.rhs for bucket in buckets])
        self._needs_TB = np.concatenate([self._lhs_TB, self._rhs_TB])
        # The entities of each; none where the left-hand side has the same partition already.
        weights = np.array(_mean_counts(self._keys, counts), np.int64)
        twice_TB = (self._rhs_TB[:, None] == self._lhs_TB).any(axis=1)
        rhs_weights_TB = np.where(twice_TB, 0, weights[self._rhs_TB])
        self._weights_TB = np.concatenate([weights[self._lhs_TB], rhs_weights_TB])

        # How many times open buckets need each partition.
        self._wanted = np.bincount(self._needs_TB[:, self._open].ravel(), minlength=len(self._keys))
        self._locked = np.zeros(len(self._keys), bool)
        self._trained = np.zeros(len(self._keys), bool)
        self._trained[[place_of[key] for key in trained if key in place_of]] = True
        self._trained[self._needs_TB[:, ~self._open]] = True

    @property
    def finished(self) -> bool:
        """Whether all buckets are done."""
        return not self.left

    def acquire(self, rank: int, old: Bucket | None) -> Lease | None:
        """Lease a bucket.

        Args:
            rank: who asks; it has no lease.
            old: the bucket whose partitions it still has in memory, if any.

        Returns:
            The lease; None when all buckets are done, or none may be leased now: ask again.
        """
        if rank in self.active:
            raise RuntimeError(f"rank {rank} asks for a bucket while it has {self.active[rank].bucket}: a bug")
        places = self._candidates()
        if not places.size:
            return None
        place = int(places[self._costs(places, old).argmin()])
        needed = self._needs_TB[:, place]
        self._open[place] = False
        np.subtract.at(self._wanted, needed, 1)
        self._locked[needed] = True
        keys = frozenset(self._keys[key] for key in needed)
        last = frozenset(self._keys[key] for key in needed[self._wanted[needed] == 0])
        lease = Lease(self._next_number, rank, self._buckets[place], keys, last)
        self._next_number += 1
        self.active[rank] = lease
        return lease

    def release(self, rank: int) -> Lease:
        """End the lease of a rank: its bucket is done.

        Raises:
            KeyError: it has none.
        """
        lease, place = self._end(rank)
        self._trained[self._needs_TB[:, place]] = True
        self.left -= 1
        return lease

    def give_back(self, rank: int) -> Lease:
        """End the lease of a rank: its bucket is not done, and may be leased again.

        Raises:
            KeyError: it has none.
        """
        lease, place = self._end(rank)
        self._open[place] = True
        np.add.at(self._wanted, self._needs_TB[:, place], 1)
        return lease

    def _end(self, rank: int) -> tuple[Lease, int]:
        lease = self.active.pop(rank)
        place = self._places[lease.bucket]
        self._locked[self._needs_TB[:, place]] = False
        return lease, place

    def _candidates(self) -> NDArray[np.intp]:
        """Return the places of the buckets that may be leased now, in their order."""
        mask: NDArray[np.bool_] = self._open & ~self._locked[self._needs_TB].any(axis=0)
        if self._tree:
            connected = mask & (self._trained[self._lhs_TB].all(axis=0) | self._trained[self._rhs_TB].all(axis=0))
            # Any bucket may be the first. What PBG counts as trained while it still is, is locked: that is the same.
            if self.active or connected.any():
                mask = connected
        return np.flatnonzero(mask)

    def _costs(self, places: NDArray[np.intp], old: Bucket | None) -> NDArray[np.int64]:
        """Return what going from ``old`` to each bucket costs, less what all of ``old`` does."""
        held = np.zeros(len(self._keys), bool)
        if old is not None:
            held[self._needs_TB[:, self._places[old]]] = True
        needs, weights = (array.take(places, axis=1) for array in (self._needs_TB, self._weights_TB))
        costs: NDArray[np.int64] = np.where(held[needs], -weights, weights).sum(axis=0)
        return costs


def useful_ranks(config: ModelConfig) -> int:
    """Return how many ranks can train at once for most of an iteration; more would wait.

    A bucket takes two of the partitions of a type that stands on both sides, so half as many buckets as there are
    partitions are disjoint. With different types on the sides it is the smaller number of partitions, and types with
    one partition limit nothing.
    """
    counts = (config.partitions("lhs"), config.partitions("rhs"))
    limit = min((count for count in counts if count > 1), default=1)
    return max(1, limit // 2 if Layout(config).rooms().shared else limit)


def _partitioned(config: ModelConfig) -> list[PartitionKey]:
    """List the partitions of the types that have several."""
    return [
        PartitionKey(name, partition)
        for name, entity in config.entities.items()
        if entity.num_partitions > 1
        for partition in range(entity.num_partitions)
    ]


def _needed(
    place_of: Mapping[PartitionKey, int], types: Mapping[str, PartitionKey], indices: list[int]
) -> NDArray[np.intp]:
    """Return the places of the partitions with these indices of the partitioned types, shape (types, indices)."""
    firsts = [place_of[PartitionKey(name, 0)] for name in types if PartitionKey(name, 0) in place_of]
    return np.array(firsts, np.intp)[:, None] + np.array(indices, np.intp)


def _mean_counts(keys: Sequence[PartitionKey], counts: Mapping[PartitionKey, int]) -> list[int]:
    """Return, for each partition, the mean over all of its type, rounded, at least 1."""
    of_type: dict[str, list[int]] = {}
    for key in keys:
        of_type.setdefault(key.entity, []).append(counts[key])
    means = {name: max(1, round(sum(listed) / len(listed))) for name, listed in of_type.items()}
    return [means[key.entity] for key in keys]
