"""Embedding partitions of a config, of its buckets and in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pbg_tasks.training.schedule import Rooms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.training.schedule import Bucket

Held = TypeVar("Held")

_PER_SIDE = 2  # the one that is trained, and the one before or after it


class PartitionKey(NamedTuple):
    """One partition of one entity type."""

    entity: str
    partition: int


def partition_keys(config: ModelConfig) -> list[PartitionKey]:
    """List every partition of every entity type."""
    return [
        PartitionKey(name, partition)
        for name, entity in config.entities.items()
        for partition in range(entity.num_partitions)
    ]


def counts_by_type(counts: Mapping[PartitionKey, int], config: ModelConfig) -> dict[str, list[int]]:
    """List the number of entities of each partition by type."""
    listed: dict[str, list[int]] = {}
    for key in partition_keys(config):
        listed.setdefault(key.entity, []).append(counts[key])
    return listed


class Layout:
    """Partitions that buckets need.

    Bucket (i, j) needs partition i of the left-hand types and j of the right-hand ones.

    Types that are not partitioned are needed by every bucket.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._parts = {name: entity.num_partitions for name, entity in config.entities.items()}
        self._buffer = config.partition_buffer
        self._lhs = sorted({relation.lhs for relation in config.relations})
        self._rhs = sorted({relation.rhs for relation in config.relations})

    def sides(self, bucket: Bucket) -> tuple[dict[str, PartitionKey], dict[str, PartitionKey]]:
        """Return the partitions of the left-hand and the right-hand side by type."""
        return self._side(self._lhs, bucket.lhs), self._side(self._rhs, bucket.rhs)

    def _side(self, names: Sequence[str], index: int) -> dict[str, PartitionKey]:
        return {name: PartitionKey(name, index if self._parts[name] > 1 else 0) for name in names}

    def by_side(self, bucket: Bucket, held: Mapping[PartitionKey, Held]) -> tuple[dict[str, Held], dict[str, Held]]:
        """Return the values that ``held`` has for the partitions of ``sides``."""
        lhs, rhs = self.sides(bucket)
        return {name: held[key] for name, key in lhs.items()}, {name: held[key] for name, key in rhs.items()}

    def needs(self, bucket: Bucket) -> frozenset[PartitionKey]:
        """Return the partitions that must be in memory for a bucket."""
        lhs, rhs = self.sides(bucket)
        return frozenset([*lhs.values(), *rhs.values()])

    def needed(self) -> dict[str, int]:
        """Return the most partitions of each type that a bucket needs.

        It is one for each side of the type.
        """
        return {name: min(count, (name in self._lhs) + (name in self._rhs)) for name, count in self._parts.items()}

    def capacity(self) -> dict[str, int]:
        """Return the most partitions of each type in memory (``partition_buffer``).

        By default two for each side of a type. It is never less than a bucket needs, which is one for each side, nor
        more than there are. Types that no relation names have none.
        """
        return {
            name: min(self._parts[name], max(self._buffer or _PER_SIDE * needed, needed)) if needed else 0
            for name, needed in self.needed().items()
        }

    def rooms(self) -> Rooms:
        """Return the room that an order of buckets may count on."""
        capacity = self.capacity()
        partitioned = {name for name, count in self._parts.items() if count > 1}
        lhs, rhs = partitioned.intersection(self._lhs), partitioned.intersection(self._rhs)
        return Rooms(
            lhs=min((capacity[name] for name in lhs), default=1),
            rhs=min((capacity[name] for name in rhs), default=1),
            shared=not lhs.isdisjoint(rhs),
        )
