"""A predictor that only counts: the answer is whoever stands on that side of that relation most often in training.

A model that does not beat it has learnt nothing about who is connected with whom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.evaluate.questions import ends

if TYPE_CHECKING:
    from pbg_tasks.evaluate.filters import Answers
    from pbg_tasks.evaluate.ids import Triples
    from pbg_tasks.evaluate.questions import Questions, Side
    from pbg_tasks.evaluate.tables import EntityTable

_STEP = 1 << 14  # edges whose known answers are looked at together


class Popularity:
    """How often each entity stands on one side of each relation.

    Args:
        predict: that side.
        entities: more than any entity's number.
    """

    def __init__(self, predict: Side, entities: int) -> None:
        self._predict, self._entities = predict, entities
        self._keys, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)

    def add(self, piece: Triples) -> None:
        """Count training edges."""
        _, answer = ends(piece, self._predict)
        keys, counts = np.unique(piece.rel * self._entities + answer, return_counts=True)
        self._keys, place = np.unique(np.concatenate((self._keys, keys)), return_inverse=True)
        self._counts = np.bincount(place, np.concatenate((self._counts, counts)), len(self._keys)).astype(np.int64)

    def ranks(self, edges: np.ndarray, questions: Questions, answers: Answers, asked: EntityTable) -> np.ndarray:
        """Return the filtered ranks, from 1, of some held-out edges; ties count as better.

        Args:
            edges: int64 (N,), rows of the held-out edges, with one entity type asked for.
            questions: of all held-out edges.
            answers: known answers, of these edges only candidates.
            asked: the candidates.
        """
        question, true = questions.of_edge[edges], questions.true[edges]
        rel, eligible = questions.rel[question], asked.eligible(true)
        own = self._count(rel, true)
        no_worse = self._no_worse(rel, own, asked) - (eligible & (own > 0))
        never = own == 0  # everyone ties with an entity that was never seen there
        no_worse[never] = (asked.candidates - eligible.astype(np.int64))[never]
        ranks: np.ndarray = 1 + no_worse - self._known_no_worse(question, rel, true, own, answers)
        return ranks

    def _count(self, rel: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Look up how often each entity was seen: int64 (N,)."""
        keys = rel * self._entities + number
        start = np.searchsorted(self._keys, keys)
        seen = np.flatnonzero(np.searchsorted(self._keys, keys, side="right") > start)
        counts = np.zeros(len(keys), np.int64)
        counts[seen] = self._counts[start[seen]]
        return counts

    def _no_worse(self, rel: np.ndarray, own: np.ndarray, asked: EntityTable) -> np.ndarray:
        """Return how many candidates were seen at least ``own`` times, where that is not 0: int64 (N,)."""
        kept = asked.eligible(self._keys % self._entities)
        base = int(self._counts.max(initial=0)) + 1
        ordered = np.sort((self._keys[kept] // self._entities) * base + self._counts[kept])
        counts: np.ndarray = np.searchsorted(ordered, (rel + 1) * base) - np.searchsorted(ordered, rel * base + own)
        return counts

    def _known_no_worse(
        self, question: np.ndarray, rel: np.ndarray, true: np.ndarray, own: np.ndarray, answers: Answers
    ) -> np.ndarray:
        """Return how many other known answers were seen at least ``own`` times: int64 (N,)."""
        result = np.zeros(len(question), np.int64)
        for start in range(0, len(question), _STEP):
            here = slice(start, start + _STEP)
            bounds, answer = answers.between(question[here], 0, self._entities)
            row = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
            counted = (self._count(rel[here][row], answer) >= own[here][row]) & (answer != true[here][row])
            result[here] = np.bincount(row[counted], minlength=len(result[here]))
        return result
