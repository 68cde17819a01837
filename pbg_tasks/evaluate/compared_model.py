"""The other model of a contest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.evaluate.tables import EntityTable
from pbg_tasks.model.families import Families

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.evaluate.ids import Triples
    from pbg_tasks.evaluate.ranking import Model

Types = tuple[str, str]
"""Of the two ends of an edge."""


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """Another model of the graph, each of its rows where tonight's entity of that name lies.

    Attributes:
        config: of the model.
        params: its shared parameters by PBG's path.
        paths: embeddings file by (type, tonight's partition).
        rows: how many rows each of these has, by type.
        known: bool (N,) by tonight's type, which entities it knows.
        relations: int64 (R,), its id of each of tonight's relations; -1 for one that it does not know.
        relation_count: how many relations it has.
        trained: int64 (M, 2) by types, numbers of the ends of edges that it may have been trained on though they are
            held out tonight.
    """

    config: ModelConfig
    params: Mapping[str, np.ndarray]
    paths: Mapping[tuple[str, int], Path]
    rows: Mapping[str, list[int]]
    known: Mapping[str, np.ndarray]
    relations: np.ndarray
    relation_count: int
    trained: Mapping[Types, np.ndarray]

    def model(self, ours: Model) -> Model:
        """Return what scores as this model does, asked by the ids of tonight's relations."""
        families = Families(self.config, self.relation_count).taken(self.relations)
        return replace(ours, config=self.config, families=families, params=self.params)

    def table(self, entity: str, bases: np.ndarray, candidates: np.ndarray) -> EntityTable:
        """Return the embeddings of a type, with some of the entities that it knows as candidates."""
        paths = [self.paths[entity, partition] for partition in range(len(bases) - 1)]
        return EntityTable(paths, bases, self.config.entity_dimension(entity), candidates, self.rows[entity])

    def fair(self, types: Types, edges: Triples) -> np.ndarray:
        """Return which edges between two types it can be asked: bool (N,)."""
        lhs, rhs = types
        fair: np.ndarray = (self.relations[edges.rel] >= 0) & self.known[lhs][edges.lhs] & self.known[rhs][edges.rhs]
        entities = max(map(len, self.known.values()))
        for pair, one, other in ((types, edges.lhs, edges.rhs), (types[::-1], edges.rhs, edges.lhs)):
            trained = self.trained.get((pair[0], pair[1]))
            if trained is not None:
                fair &= ~np.isin(one * entities + other, trained[:, 0] * entities + trained[:, 1])
        return fair
