"""Coverage: the share of new entities that training reached.

An entity without an edge to train on stays where it started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.evaluate.ids import of_types

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.evaluate.ids import Bucket, Numbering
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.model.families import Families


class Coverage:
    """Record of the new entities that training reached.

    Args:
        config: of the model.
        numbering: of its entities.
        families: of its relations.
        new: bool (N,) by type, whether each entity is new.
        moved: bool (N,) by type, whether the optimizer moved each entity.
    """

    def __init__(
        self,
        config: ModelConfig,
        numbering: Numbering,
        families: Families,
        new: Mapping[str, np.ndarray],
        moved: Mapping[str, np.ndarray],
    ) -> None:
        self._config, self._numbering = config, numbering
        self._families = families
        self._new, self._moved = new, moved
        self._trained = {entity: np.zeros(len(flags), bool) for entity, flags in new.items()}

    def add(self, bucket: Bucket, listed: EdgeList) -> None:
        """Add the training edges of a bucket."""
        edges = self._numbering.triples([(bucket, listed)])
        for (lhs, rhs), own in of_types(self._config, self._families, edges):
            self._trained[lhs][own.lhs] = True
            self._trained[rhs][own.rhs] = True

    def to_json(self) -> dict[str, dict[str, int]]:
        """Return the numbers of ``new`` and of reached entities by type.

        ``trained``: those that are an end of a training edge; ``moved``: those that moved, also as a negative of other
        edges; ``covered``: both.
        """
        return {
            entity: {
                "new": int(new.sum()),
                "trained": int((new & self._trained[entity]).sum()),
                "moved": int((new & self._moved[entity]).sum()),
                "covered": int((new & self._trained[entity] & self._moved[entity]).sum()),
            }
            for entity, new in self._new.items()
        }
