"""The other model of a comparison of two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.evaluate.tables import EntityTable
from pbg_tasks.model.families import Families

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from pathlib import Path

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.evaluate.ids import Triples
    from pbg_tasks.evaluate.kept_counts import KeptCounts
    from pbg_tasks.evaluate.ranking import Model

Types = tuple[str, str]
"""Types of the two ends of an edge."""


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """Another model of the graph, with rows in tonight's numbering.

    Each of its rows is at the place of tonight's entity of the same name.

    Attributes:
        config: of the model.
        params: its shared parameters by PBG's path.
        paths: embeddings file by (type, tonight's partition).
        rows: number of rows of each of these, by type.
        known: bool (N,) by tonight's type, whether it knows each entity.
        relations: int64 (R,), its id of each of tonight's relations; -1 for one that it does not know.
        relation_count: number of its relations.
        trained: int64 (M, 2) by types, numbers of the ends of edges that it may have been trained on though they are
            held out tonight.
        continued: whether tonight's vectors started from its.
        repeats: whether tonight's run differs from its own by settings alone.
        kept: counts of its own night, where it kept any and its entities have the places that they had.
    """

    config: ModelConfig
    params: Mapping[str, np.ndarray]
    paths: Mapping[tuple[str, int], Path]
    rows: Mapping[str, list[int]]
    known: Mapping[str, np.ndarray]
    relations: np.ndarray
    relation_count: int
    trained: Mapping[Types, np.ndarray]
    continued: bool = False
    repeats: bool = False
    kept: KeptCounts | None = None

    def model(self, ours: Model) -> Model:
        """Return a model that scores as this one, with tonight's relation ids."""
        families = Families(self.config, self.relation_count).taken(self.relations)
        return replace(ours, config=self.config, families=families, params=self.params)

    def table(
        self, entity: str, bases: np.ndarray, candidates: np.ndarray, share: Container[int] | None = None
    ) -> EntityTable:
        """Return the embeddings of a type, with candidates that it knows.

        ``share`` has the partitions whose candidates are counted; None: all.
        """
        paths = [self.paths[entity, partition] for partition in range(len(bases) - 1)]
        return EntityTable(paths, bases, self.config.entity_dimension(entity), candidates, self.rows[entity], share)

    def fair(self, types: Types, edges: Triples) -> np.ndarray:
        """Return which edges between two types it can fairly rank: bool (N,)."""
        lhs, rhs = types
        fair: np.ndarray = (self.relations[edges.rel] >= 0) & self.known[lhs][edges.lhs] & self.known[rhs][edges.rhs]
        entities = max(map(len, self.known.values()))
        for pair, one, other in ((types, edges.lhs, edges.rhs), (types[::-1], edges.rhs, edges.lhs)):
            trained = self.trained.get((pair[0], pair[1]))
            if trained is not None:
                fair &= ~np.isin(one * entities + other, trained[:, 0] * entities + trained[:, 1])
        return fair
