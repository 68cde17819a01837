"""Known edges, whose ends must not be answers again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from pbg_tasks.evaluate.filters import Answers
from pbg_tasks.evaluate.ids import Triples
from pbg_tasks.evaluate.questions import ends

if TYPE_CHECKING:
    from pbg_tasks.model.parameters import Side


class KnownEdges:
    """Index of known edges from both sides.

    Make it once with ``Model.known`` and use it for many queries.

    Args:
        triples: the edges.
        entities: a number above any entity's number.
        model: whose numbers the edges have: its place, version and names.

    Attributes:
        model: the same.
    """

    def __init__(self, triples: Triples, entities: int, model: tuple[object, ...] | None = None) -> None:
        self._entities, self.model = entities, model
        self._sides: dict[Side, tuple[np.ndarray, np.ndarray]] = {
            "lhs": self._sorted(triples, "lhs"),
            "rhs": self._sorted(triples, "rhs"),
        }

    def __repr__(self) -> str:
        return f"<KnownEdges: {len(self):,} edges>"

    def __len__(self) -> int:
        return len(self._sides["lhs"][0])

    def _sorted(self, triples: Triples, predict: Side) -> tuple[np.ndarray, np.ndarray]:
        """Return (question, answer) of the edges, ascending and distinct."""
        known, answer = ends(triples, predict)
        question = triples.rel * self._entities + known
        order = np.lexsort((answer, question))
        question, answer = question[order], answer[order]
        fresh = np.ones(len(order), bool)
        fresh[1:] = (np.diff(question) != 0) | (np.diff(answer) != 0)
        return question[fresh], answer[fresh]

    @classmethod
    def none(cls, entities: int) -> Self:
        """Return an index without edges."""
        nothing = np.empty(0, np.int64)
        return cls(Triples(nothing, nothing, nothing), entities)

    def answers(self, rel: np.ndarray, known: np.ndarray, predict: Side, selves: np.ndarray | None = None) -> Answers:
        """Return the known answers of each query.

        Args:
            rel: int64 (Q,), relations.
            known: int64 (Q,), known ends.
            predict: side of the answers.
            selves: bool (Q,), whether the known end counts as an answer; None: in no query.
        """
        questions, answers = self._sides[predict]
        asked = rel * self._entities + known
        start = np.searchsorted(questions, asked)
        sizes = np.searchsorted(questions, asked, side="right") - start
        row = np.repeat(np.arange(len(asked)), sizes)
        within = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        keys = row * self._entities + answers[start[row] + within]
        if selves is not None:
            own = np.flatnonzero(selves)
            keys = np.union1d(keys, own * self._entities + known[own])
        return Answers(keys, self._entities)
