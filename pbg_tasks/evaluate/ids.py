"""Numbers of a type's entities over all partitions, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.formats.edges import joined_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.model.families import Families

Bucket = tuple[int, int]
_FAR_MORE = 64
"""Factor of the others' number from which numbers are searched one by one: ``isin`` would go through all."""


@dataclass(frozen=True, slots=True)
class Triples:
    """Edges with entities numbered over all partitions of their type.

    Attributes:
        lhs: int64 (N,).
        rel: int64 (N,).
        rhs: int64 (N,).
    """

    lhs: np.ndarray
    rel: np.ndarray
    rhs: np.ndarray

    def __len__(self) -> int:
        return len(self.rel)

    def select(self, rows: np.ndarray) -> Triples:
        """Return some of the edges."""
        return Triples(self.lhs[rows], self.rel[rows], self.rhs[rows])


def are_among(numbers: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    """Return whether each number is one of others: bool (N,).

    Args:
        numbers: int64 (N,), in any order.
        ascending: int64, the others, in order.
    """
    if len(numbers):  # those of a block are close together, and `isin` goes through all others
        ascending = ascending[slice(*np.searchsorted(ascending, (numbers.min(), numbers.max() + 1)))]
    if len(numbers) * _FAR_MORE >= len(ascending):
        return np.isin(numbers, ascending)
    found: np.ndarray = ascending.take(np.searchsorted(ascending, numbers), mode="clip") == numbers
    return found


class Numbering:
    """Conversion of (partition, offset) to a number, by entity type.

    Args:
        config: defines the types on the sides of relations.
        counts: entities of each partition, by type.
        families: of the relations.
    """

    def __init__(self, config: ModelConfig, counts: Mapping[str, list[int]], families: Families) -> None:
        self._config, self._families = config, families
        self.bases = {entity: np.concatenate(([0], np.cumsum(listed))) for entity, listed in counts.items()}

    def total(self, entity: str) -> int:
        """Return the number of entities of a type."""
        return int(self.bases[entity][-1])

    def triples(self, buckets: Iterable[tuple[Bucket, EdgeList]]) -> Triples:
        """Number the ends of the edges of buckets.

        An end whose type is not partitioned is in partition 0.
        """
        parts = [self._number(bucket, edges) for bucket, edges in buckets if len(edges)]
        if not parts:
            empty = np.empty(0, np.int64)
            return Triples(empty, empty, empty)
        return Triples(*joined_columns(parts, ("lhs", "rel", "rhs")))

    def _number(self, bucket: Bucket, edges: EdgeList) -> Triples:
        lhs, rhs = (
            offsets + self._base(side, index, edges.rel)
            for side, index, offsets in (("lhs", bucket[0], edges.lhs), ("rhs", bucket[1], edges.rhs))
        )
        return Triples(lhs, edges.rel, rhs)

    def _base(self, side: str, partition: int, rel: np.ndarray) -> np.ndarray | int:
        """Return the first number of a bucket's partition, by edge."""
        bases = []
        for relation in self._config.relations:
            entity = getattr(relation, side)
            here = partition if self._config.entities[entity].num_partitions > 1 else 0
            bases.append(int(self.bases[entity][here]))
        return bases[0] if len(set(bases)) == 1 else np.array(bases, np.int64)[self._families.first[rel]]


def by_types(config: ModelConfig, families: Families, edges: Triples) -> Iterator[tuple[tuple[str, str], np.ndarray]]:
    """Yield the edges of each pair of types, as their rows.

    An item is (types of the two ends, rows of the edges with them): int64, ascending.
    """
    types = [(relation.lhs, relation.rhs) for relation in config.relations]
    index = families.first[edges.rel]
    for pair in dict.fromkeys(types):
        rows = np.flatnonzero(np.isin(index, [number for number, own in enumerate(types) if own == pair]))
        if len(rows):
            yield pair, rows


def of_types(config: ModelConfig, families: Families, edges: Triples) -> Iterator[tuple[tuple[str, str], Triples]]:
    """Yield the edges of each pair of types.

    Those of a config with one pair are not copied.
    """
    pairs = {(relation.lhs, relation.rhs) for relation in config.relations}
    if len(pairs) == 1:
        if len(edges):
            yield pairs.pop(), edges
        return
    for pair, rows in by_types(config, families, edges):
        yield pair, edges.select(rows)
