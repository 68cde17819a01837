"""Which partitions are read and written, and when, while buckets are trained in a known order.

A buffer has room for some partitions of each entity type. What is read next is the first partition that a coming bucket
needs and that is not there; what makes room for it is the one needed again last (Belady, "A study of replacement
algorithms", 1966), as long as that is after the bucket it makes room for. Reading begins as early as there is such a
one, but not further ahead than the next bucket that is incomplete: to make room too early for what is needed late costs
more swaps than it hides.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from pbg_tasks.train.data.partitions import Layout, PartitionKey
from pbg_tasks.train.schedule import bucket_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.train.schedule import Bucket


class Swap(NamedTuple):
    """One partition that is brought into memory, and the one that leaves it first; None where there is room."""

    load: PartitionKey
    evict: PartitionKey | None


class SwapPlan:
    """Follows a buffer along a sequence of buckets.

    Args:
        needs: the partitions of each bucket, in the order of training.
        capacity: partitions in memory, by entity type; enough for each bucket.
        resident: what is in memory at the start.

    Attributes:
        resident: what is in memory once the swaps returned so far are done.
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
        self._at = -1  # the bucket that is trained
        self._complete = 0  # the buckets before this one have all they need
        self._room_made_for = -1

    def advance(self) -> list[Swap]:
        """Go on to the next bucket and return what may be swapped from now on, in this order.

        What the bucket itself lacks comes first; usually that was swapped while the one before was trained.
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
        """Return what leaves for the first incomplete bucket; None while it is too early for that."""
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


class Traffic(NamedTuple):
    """What following a schedule costs.

    Attributes:
        loads: partitions read.
        waits: those of them that no bucket's training hides: there was no room to read them earlier.
        peak_bytes: most that partitions take in memory at once.
    """

    loads: int
    waits: int
    peak_bytes: int


def iteration_order(config: ModelConfig, *, seed: int, number: int) -> list[Bucket]:
    """Return the order of the buckets in iteration ``number`` (from 1) of a training."""
    last_first = config.bucket_order == "min_swaps" and not number % 2
    order = bucket_order(
        config.bucket_order,
        config.partitions("lhs"),
        config.partitions("rhs"),
        seed=f"{seed}/order/{number - last_first}",
        rooms=Layout(config).rooms(),
    )
    return order[::-1] if last_first else order


def simulate(config: ModelConfig, orders: Sequence[Sequence[Bucket]], sizes: Mapping[PartitionKey, int]) -> Traffic:
    """Follow the swaps of some iterations without doing them.

    Args:
        config: says what buckets need and how much stays in memory.
        orders: of the buckets of each iteration, as ``iteration_order`` gives them; two show all there is to see.
        sizes: bytes of each partition in memory: its embeddings and their optimizer's sums.
    """
    layout = Layout(config)
    plan = SwapPlan([layout.needs(bucket) for order in orders for bucket in order], layout.capacity())
    loads, waits, peak, held = 0, 0, 0, 0
    for bucket in (bucket for order in orders for bucket in order):
        needed = layout.needs(bucket)
        for load, evict in plan.advance():
            held += sizes[load] - (0 if evict is None else sizes[evict])
            peak = max(peak, held)
            loads += 1
            waits += load in needed
    return Traffic(loads, waits, peak)
