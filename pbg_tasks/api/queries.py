"""Conversion of a caller's names to numbers, grouped by relation family.

The names are of edges or of halves of edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pbg_tasks.api.names import UnknownNameError, as_bags, as_names
from pbg_tasks.errors import InputError
from pbg_tasks.evaluate.ids import Triples
from pbg_tasks.formats.edges import Features
from pbg_tasks.model.parameters import SIDES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from pbg_tasks.api.loading import EntityTable
    from pbg_tasks.api.names import Column
    from pbg_tasks.api.relations import RelationIndex
    from pbg_tasks.api.scoring import Ends
    from pbg_tasks.config import ModelConfig
    from pbg_tasks.model.parameters import Side


@dataclass(frozen=True, slots=True)
class Query:
    """N edges or halves of edges.

    Attributes:
        rel: int64 (N,), relation ids.
        ends: the given sides, each N names or bags of features.
        single: whether the caller gave just one name for each.
    """

    rel: np.ndarray
    ends: Mapping[Side, list[Any]]
    single: bool


class Resolver:
    """Conversion of names to numbers.

    Args:
        config: of the model.
        relations: of the model.
        entities: by type.
    """

    def __init__(self, config: ModelConfig, relations: RelationIndex, entities: Mapping[str, EntityTable]) -> None:
        self._config, self._relations = config, relations
        self._entities = entities

    def query(self, rel: Column | None, ends: Mapping[Side, Column], **types: str | None) -> Query:
        """Convert relations and ends to lists of one length.

        Raises:
            InputError: their lengths differ, or a relation is not given.
            UnknownNameError: there is no such relation.
        """
        names, single_rel = as_names(self._relations.only() if rel is None else rel)
        numbers = self._relations.numbers(names, **types)
        columns = {side: self._column(value, side, numbers) for side, value in ends.items()}
        single = single_rel and all(alone for _, alone in columns.values())
        lengths = {len(names)} if not single_rel else set()
        lengths |= {len(values) for values, alone in columns.values() if not alone}
        if len(lengths) > 1:
            raise InputError(f"lists of names must be of one length, got {sorted(lengths)}")
        count = lengths.pop() if lengths else 1
        stretched = {side: values * count if alone else values for side, (values, alone) in columns.items()}
        return Query(np.repeat(numbers, count) if single_rel else numbers, stretched, single)

    def _column(self, value: Column, side: Side, rel: np.ndarray) -> tuple[list[Any], bool]:
        types = {self._relations.entity_type(number, side) for number in np.unique(rel)}
        featurized = any(self._config.entities[entity].featurized for entity in types)
        return as_bags(value) if featurized else as_names(value)

    def families(self, query: Query) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each family of the query's relations, with its rows."""
        first = self._relations.families.first[query.rel]
        for family in np.unique(first):
            yield int(family), np.flatnonzero(first == family)

    def ends(self, query: Query, family: int, side: Side, rows: np.ndarray) -> Ends:
        """Return the entities on one side of some rows of one family.

        Raises:
            UnknownNameError: one is not in the model.
            InputError: several names are given for an entity that is not featurized.
        """
        entity = getattr(self._config.relations[family], side)
        return self.of_type(entity, [query.ends[side][row] for row in rows])

    def of_type(self, entity: str, listed: Sequence[str | tuple[str, ...]]) -> Ends:
        """Return entities of one type by number.

        Those of a featurized type are returned by their features.

        Raises:
            UnknownNameError: one is not in the model.
            InputError: several names are given for an entity that is not featurized.
        """
        index = self._entities[entity].names
        if not self._config.entities[entity].featurized:
            names = [_alone(item, entity) for item in listed]
            numbers = index.find(names)
            if (numbers < 0).any():
                raise self._unknown(entity, names[int(np.argmin(numbers))])
            return numbers
        bags = [(item,) if isinstance(item, str) else item for item in listed]
        offsets = np.cumsum([0, *map(len, bags)], dtype=np.int64)
        return Features(offsets, index.numbers([name for bag in bags for name in bag]))

    def _unknown(self, entity: str, name: str) -> UnknownNameError:
        """Return the error for a name that a type lacks."""
        having = [kind for kind, table in self._entities.items() if name in table.names]
        if not having:
            return self._entities[entity].names.unknown(name)
        return UnknownNameError(f"no entity of type {entity!r} is named {name!r}; it is of type {' or '.join(having)}")

    def triples(self, edges: pa.Table) -> Triples:
        """Return edges by number.

        Edges with an end that the model lacks are left out.

        Args:
            edges: result of ``edge_table``.

        Raises:
            UnknownNameError: there is no such relation.
            InputError: a relation is not given, or its types are not.
        """
        columns = edges.to_pydict()
        rel = columns["rel"] if "rel" in columns else [self._relations.only() for _ in range(len(edges))]
        types = (columns.get(side) or [None] * len(edges) for side in ("lhs_type", "rhs_type"))
        kinds = list(zip(rel, *types, strict=True))
        known = {kind: self._relations.number(*kind) for kind in set(kinds)}
        query = Query(np.array([known[kind] for kind in kinds], np.int64), columns, single=False)
        ends = {side: np.full(len(edges), -1, np.int64) for side in SIDES}
        for family, rows in self.families(query):
            for side, found in ends.items():
                index = self._entities[getattr(self._config.relations[family], side)].names
                found[rows] = index.find([columns[side][row] for row in rows])
        return Triples(ends["lhs"], query.rel, ends["rhs"]).select((ends["lhs"] >= 0) & (ends["rhs"] >= 0))


def _alone(item: str | tuple[str, ...], entity: str) -> str:
    if isinstance(item, str):
        return item
    if len(item) != 1:
        raise InputError(
            f"entities of type {entity!r} are not featurized: {item!r} cannot be one of them (give several in a list)"
        )
    return item[0]
