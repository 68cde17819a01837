"""Families: relations that are trained together, and their parameters' rows.

``ModelConfig.families`` lists them; here they are arrays by relation. Tasks that only read a model use these, so the
module takes neither torch, as the rest of this room does, nor is it a part of the config, which takes no NumPy.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pbg_tasks.config import ModelConfig


class Families:
    """Families of a config (``ModelConfig.families``), by relation id.

    Args:
        config: the model.
        relation_count: relations in the data, for a config that does not list them.

    Attributes:
        first: int64 (R,), index in the config of the first relation of each relation's family: it has the family's
            entity types and operator, and its parameters are named by it.
        alike: int64 (R,), index in the config of the first relation of the family that is also trained alike, with the
            same weights and ``all_negs``: edges of such relations may share a batch.
        row: int64 (R,), row of each relation in the stacked parameters of its family.
        sizes: number of relations in each family, by ``first``.
    """

    def __init__(self, config: ModelConfig, relation_count: int) -> None:
        if config.relations_from_data:
            self.first = self.alike = np.zeros(relation_count, np.int64)
            self.row = np.arange(relation_count)
            self.sizes = {0: relation_count}
            return
        self.first = np.zeros(len(config.relations), np.int64)
        self.row = np.zeros(len(config.relations), np.int64)
        self.alike = np.zeros(len(config.relations), np.int64)
        self.sizes = {}
        for family in config.families:
            members = list(family.relations or ())
            self.first[members] = family.first
            self.row[members] = np.arange(len(members))
            self.sizes[family.first] = len(members)
            kinds: dict[tuple[tuple[float, float], bool], int] = {}
            for member in members:
                relation = config.relations[member]
                self.alike[member] = kinds.setdefault((relation.side_weights, relation.all_negs), member)

    def taken(self, relations: np.ndarray) -> Families:
        """Return the families of some relations, numbered anew in that order.

        Args:
            relations: int64 (M,), ids; -1 stands for a relation that is not used.
        """
        taken = copy(self)
        taken.first, taken.alike, taken.row = (array[relations] for array in (self.first, self.alike, self.row))
        return taken

    def __len__(self) -> int:
        return len(self.first)
