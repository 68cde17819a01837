"""Questions: (relation, known end), which the true entity completes.

Held-out edges with the same question are scored once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pbg_tasks.evaluate.ids import Triples
    from pbg_tasks.model.parameters import Side


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions of held-out edges on one side.

    Attributes:
        predict: side of the answers.
        entities: a number above any entity's number.
        keys: int64 (G,), the distinct questions as ``rel * entities + known``, ascending: by relation first.
        of_edge: int64 (N,), position in ``keys`` of each held-out edge's question.
        true: int64 (N,), number of the entity that answers it there.
    """

    predict: Side
    entities: int
    keys: np.ndarray
    of_edge: np.ndarray
    true: np.ndarray

    @classmethod
    def of(cls, asked: Triples, predict: Side, entities: int) -> Questions:
        """Collect the questions of held-out edges."""
        known, true = ends(asked, predict)
        keys, of_edge = np.unique(asked.rel * entities + known, return_inverse=True)
        return cls(predict, entities, keys, of_edge, true)

    @property
    def rel(self) -> np.ndarray:
        """Relation of each question, int64 (G,)."""
        return self.keys // self.entities

    @property
    def known(self) -> np.ndarray:
        """Number of the known end of each question, int64 (G,)."""
        return self.keys % self.entities


def ends(triples: Triples, predict: Side) -> tuple[np.ndarray, np.ndarray]:
    """Return (known end, end on side ``predict``) of edges."""
    return (triples.rhs, triples.lhs) if predict == "lhs" else (triples.lhs, triples.rhs)
