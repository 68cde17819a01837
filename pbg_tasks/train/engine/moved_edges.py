"""Edges of a bucket on the device that trains them.

They are moved once, in the training order, so that batches are slices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from pbg_tasks.model.registry import operator
from pbg_tasks.model.relations import Groups
from pbg_tasks.train.engine.batching import Batch
from pbg_tasks.train.engine.lookup import Bags, Single

if TYPE_CHECKING:
    from pbg_tasks.config import ModelConfig
    from pbg_tasks.formats.edges import EdgeList, Features
    from pbg_tasks.model.families import Families
    from pbg_tasks.train.engine.device import Host
    from pbg_tasks.train.engine.lookup import Lookup


class MovedEdges:
    """Batches of edges that are moved to a device at once.

    The features of entities and the groups of equal relations of a batch are prepared on the host, batch by batch,
    because asking the device for their sizes would make the host wait.

    Args:
        edges: of the bucket.
        order: int64, the training order.
        config: the model.
        families: families of the relations.
        place: the device.
    """

    def __init__(
        self, edges: EdgeList, order: np.ndarray, config: ModelConfig, families: Families, place: Host
    ) -> None:
        self._edges, self._order, self._config, self._families, self._place = edges, order, config, families, place
        there = place.put(torch.from_numpy(order))
        self._lhs, self._rhs = (place.put(_tensor(column)).index_select(0, there) for column in (edges.lhs, edges.rhs))
        self._weight = None if edges.weight is None else place.put(_tensor(edges.weight)).index_select(0, there)
        self._rel = None
        if any(map(config.has_two_operators, config.relations)):
            self._rel = place.put(torch.from_numpy(families.row[edges.rel])).index_select(0, there)

    def batch(self, kind: int, edge_chunk: slice) -> Batch:
        """Return the batch of a slice of edges, all of one kind."""
        relation, entities = self._config.relations[kind], self._config.entities
        return Batch(
            self._ends(self._lhs, self._edges.lhs_features, edge_chunk, featurized=entities[relation.lhs].featurized),
            self._ends(self._rhs, self._edges.rhs_features, edge_chunk, featurized=entities[relation.rhs].featurized),
            int(self._families.first[kind]),
            self._rel[edge_chunk] if self._rel is not None and self._config.has_two_operators(relation) else None,
            None if self._weight is None else self._weight[edge_chunk],
            like=kind,
            groups=self._groups(edge_chunk) if operator(relation.operator).matrices else None,
        )

    def _ends(self, ids: torch.Tensor, features: Features | None, edge_chunk: slice, *, featurized: bool) -> Lookup:
        if not featurized or features is None:
            return Single(ids[edge_chunk])
        chosen = features.select(self._order[edge_chunk])
        return Bags(*(self._place.put(torch.from_numpy(part)) for part in (chosen.offsets, chosen.data)))

    def _groups(self, edge_chunk: slice) -> Groups | None:
        if self._rel is None:
            return None
        groups = Groups.of(torch.from_numpy(self._families.row[self._edges.rel[self._order[edge_chunk]]]))
        return groups.moved(self._place.put)


def _tensor(column: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.require(column, requirements=["C", "W"]))
