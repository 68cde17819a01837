"""Drift by edges: degrees, means by relation, and surroundings.

Surroundings are the edges around a few entities. All come from one pass over the edges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pbg_tasks.evaluate.ids import of_types

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.evaluate.ids import Triples
    from pbg_tasks.model.families import Families


class End(NamedTuple):
    """Entity, by its number over all partitions of its type."""

    entity: str
    number: int


class Edge(NamedTuple):
    """Edge between two entities."""

    lhs: End
    rel: int
    rhs: End


class RelationDrift:
    """Sums of entities' figures over the edges they are ends of.

    Args:
        config: of tonight's model.
        families: of its relations.
        cosine: float32 (N,) by type, NaN where there is none.
        overlap: same.

    Attributes:
        degree: int64 (N,) by type, edges of each entity so far.
    """

    def __init__(
        self,
        config: ModelConfig,
        families: Families,
        cosine: Mapping[str, np.ndarray],
        overlap: Mapping[str, np.ndarray],
    ) -> None:
        self._config, self._families = config, families
        self._figures = {"cosine": cosine, "overlap": overlap}
        self._there = {name: _there(figures) for name, figures in self._figures.items()}
        self.degree = {entity: np.zeros(len(values), np.int64) for entity, values in cosine.items()}
        self._edges = np.zeros(len(families), np.int64)
        self._sums = {name: np.zeros((2, len(families))) for name in self._figures}  # ends with a figure, their sum

    def add(self, edges: Triples) -> None:
        """Add some of tonight's edges."""
        self._edges += np.bincount(edges.rel, minlength=len(self._families))
        for (lhs, rhs), own in of_types(self._config, self._families, edges):
            for entity, numbers in ((lhs, own.lhs), (rhs, own.rhs)):
                np.add.at(self.degree[entity], numbers, 1)
                for name, figures in self._figures.items():
                    there = np.flatnonzero(self._there[name][entity][numbers])  # few of them have an overlap
                    rel, found = own.rel[there], figures[entity][numbers[there]]
                    for row, weights in enumerate((None, found)):
                        self._sums[name][row] += np.bincount(rel, weights, len(self._families))

    def to_json(self, names: list[str]) -> dict[str, dict[str, float | None]]:
        """Return the figures of each relation that has edges, by name.

        Means are over ends that have a figure.
        """
        present = np.flatnonzero(self._edges).tolist()
        return {names[rel]: {"edges": int(self._edges[rel]), **self._means(rel)} for rel in present}

    def _means(self, rel: int) -> dict[str, float | None]:
        sums = self._sums.items()
        return {name: round(total[rel] / ends[rel], 6) if ends[rel] else None for name, (ends, total) in sums}


def _there(figures: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return which entities have a figure: bool (N,) by type."""
    return {entity: ~np.isnan(values) for entity, values in figures.items()}


class Surroundings:
    """Edges around a few entities, at most ``limit`` of each.

    Args:
        config: of the model.
        families: of its relations.
        chosen: the entities.
        limit: edges of one.

    Attributes:
        edges: of each.
    """

    def __init__(self, config: ModelConfig, families: Families, chosen: list[End], limit: int) -> None:
        self._config, self._families = config, families
        self._limit = limit
        self.edges: dict[End, list[Edge]] = {end: [] for end in chosen}
        # A flag of each number up to the last chosen one, and one for all numbers behind it: `isin` takes longer.
        self._is_chosen = {}
        for entity in config.entities:
            numbers = [end.number for end in chosen if end.entity == entity]
            self._is_chosen[entity] = np.zeros(max(numbers, default=-1) + 2, bool)
            self._is_chosen[entity][numbers] = True

    def add(self, edges: Triples) -> None:
        """Search some edges for those around the entities."""
        for (lhs, rhs), typed in of_types(self._config, self._families, edges):
            around = self._is_chosen[lhs].take(typed.lhs, mode="clip")
            around |= self._is_chosen[rhs].take(typed.rhs, mode="clip")
            own = typed.select(np.flatnonzero(around))
            for end, listed in self.edges.items():
                here = np.zeros(len(own), bool)
                for entity, numbers in ((lhs, own.lhs), (rhs, own.rhs)):
                    if entity == end.entity:
                        here |= numbers == end.number
                for row in np.flatnonzero(here)[: self._limit - len(listed)].tolist():
                    ends = End(lhs, int(own.lhs[row])), End(rhs, int(own.rhs[row]))
                    listed.append(Edge(ends[0], int(own.rel[row]), ends[1]))
