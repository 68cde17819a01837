"""Plan of partition swaps for a known order of buckets.

A buffer has room for some partitions of each entity type. The next partition that is read is the first one that a
coming bucket needs and that is not in memory. It replaces the one that is needed again last (Belady, "A study of
replacement algorithms", 1966), as long as that is after the bucket for which room is made. Reading begins as soon as
such a partition exists, but not further ahead than the next incomplete bucket: room that is made too early for a late
need costs more swaps than it hides.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from pbg_tasks.training.data.partitions import Layout, PartitionKey
from pbg_tasks.training.schedule import bucket_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.training.schedule import Bucket


class Swap(NamedTuple):
    """A partition to read, and the one to evict first.

    ``evict`` is None where there is room.
    """

    load: PartitionKey
    evict: PartitionKey | None


class SwapPlan:
    """Plan of the swaps along a sequence of buckets.

    Args:
        needs: the partitions of each bucket, in the order of training.
        capacity: partitions in memory, by entity type; enough for each bucket.
        resident: partitions in memory at the start.

    Attributes:
        resident: partitions in memory once the swaps returned so far are done.
    """

    def __init__(
        self,
        needs: Sequence[frozenset[PartitionKey]],
        capacity: Mapping[str, int],
        resident: Iterable[PartitionKey] = (),
    ) -> None:
        self._needs, self._capacity = needs, capacity
        self.resident = set(resident)
        self._uses: dict[PartitionKey, list[int]] = {}
        for index, keys in enumerate(needs):
            for key in keys:
                self._uses.setdefault(key, []).append(index)
        self._at = -1  # index of the bucket that is trained
        self._complete = 0  # the buckets before this index have all that they need
        self._room_made_for = -1

    def advance(self) -> list[Swap]:
        """Go on to the next bucket and return swaps to begin.

        The swaps are in order. Those that the bucket itself needs come first; usually they were made while the bucket
            before was trained.
        """
        self._at += 1
        self._complete = max(self._complete, self._at)
        swaps: list[Swap] = []
        while self._complete < len(self._needs):
            for key in sorted(self._needs[self._complete] - self.resident):
                crowd = [other for other in self.resident if other.entity == key.entity]
                evict = None
                if len(crowd) >= self._capacity[key.entity]:
                    evict = self._victim(crowd)
                    if evict is None:
                        return swaps
                    self.resident.remove(evict)
                self.resident.add(key)
                swaps.append(Swap(key, evict))
            self._complete += 1
        return swaps

    def _victim(self, crowd: list[PartitionKey]) -> PartitionKey | None:
        """Return the partition to evict for the first incomplete bucket.

        None is returned while it is too early.
        """
        if self._at < self._room_made_for < self._complete:
            return None
        last, victim = max((self._next_use(key), key) for key in crowd)
        if last <= self._complete:
            return None
        self._room_made_for = self._complete
        return victim

    def _next_use(self, key: PartitionKey) -> float:
        uses = self._uses.get(key, [])
        place = bisect_left(uses, self._at)
        return uses[place] if place < len(uses) else math.inf


def iteration_order(config: ModelConfig, *, seed: int, number: int) -> list[Bucket]:
    """Return the order of buckets in iteration ``number`` (from 1)."""
    last_first = config.bucket_order == "min_swaps" and not number % 2
    order = bucket_order(
        config.bucket_order,
        config.partitions("lhs"),
        config.partitions("rhs"),
        seed=f"{seed}/order/{number - last_first}",
        rooms=Layout(config).rooms(),
    )
    return order[::-1] if last_first else order
