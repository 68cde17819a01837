"""Filter of a question's candidates that are known to be right.

They are left out of the filtered rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.evaluate.ids import are_among
from pbg_tasks.evaluate.questions import ends

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.evaluate.ids import Triples
    from pbg_tasks.evaluate.questions import Questions


class Answers:
    """Known answers of each question, without repetition.

    Args:
        keys: int64 (M,), ``question * entities + answer``, ascending.
        entities: a number above any entity's number.
    """

    def __init__(self, keys: np.ndarray, entities: int) -> None:
        self._keys, self._entities = keys, entities

    def among(self, numbers: np.ndarray) -> Answers:
        """Return only the answers with the given numbers, which ascend."""
        return Answers(self._keys[are_among(self._keys % self._entities, numbers)], self._entities)

    def others(self, questions: np.ndarray, true: np.ndarray) -> np.ndarray:
        """Count the answers besides an edge's own, for its question.

        The result is int64 (N,).
        """
        start, stop = self._ranges(questions, 0, self._entities)
        own = questions * self._entities + true
        itself = np.searchsorted(self._keys, own, side="right") - np.searchsorted(self._keys, own)
        counts: np.ndarray = stop - start - itself
        return counts

    def between(self, questions: np.ndarray, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the answers with a number from ``first`` to below ``stop``.

        Args:
            questions: int64 (Q,).
            first: lowest number.
            stop: above the highest.

        Returns:
            The positions at which the answers of each question begin, then their count, int64 (Q + 1,); and all
            answers, int64.
        """
        starts, stops = self._ranges(questions, first, stop)
        bounds = np.concatenate(([0], np.cumsum(stops - starts)))
        places = np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], stops - starts)
        return bounds, self._keys[places] % self._entities

    def pieces(self, questions: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield all answers of questions, at most ``size`` at a time.

        Those of one question may come in several pieces.

        Args:
            questions: int64 (Q,).
            size: of a piece.

        Yields:
            The position in ``questions`` of each answer's question, ascending; and the answers, both int64.
        """
        starts, stops = self._ranges(questions, 0, self._entities)
        bounds = np.concatenate(([0], np.cumsum(stops - starts)))
        shift = starts - bounds[:-1]
        for first in range(0, int(bounds[-1]), size):
            place = np.arange(first, min(first + size, bounds[-1]))
            row = np.searchsorted(bounds, place, side="right") - 1
            yield row, self._keys[place + shift[row]] % self._entities

    def hold(self, questions: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return whether each entity is an answer of its question: bool (N,)."""
        keys = questions * self._entities + numbers
        held: np.ndarray = np.searchsorted(self._keys, keys, side="right") > np.searchsorted(self._keys, keys)
        return held

    def _ranges(self, questions: np.ndarray, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        base = questions * self._entities
        return np.searchsorted(self._keys, base + first), np.searchsorted(self._keys, base + stop)


class AnswerCollector:
    """Collector of the known answers of questions, one piece at a time.

    Known edges that answer no question are not kept.
    """

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        # Most edges end at no entity of a question: a flag shows that sooner than a search among the questions.
        self._is_known = np.zeros(questions.entities, bool)
        self._is_known[questions.known] = True
        self._found: list[np.ndarray] = [np.empty(0, np.int64)]

    def add(self, piece: Triples) -> None:
        """Add known edges."""
        asked = self._questions
        known, answer = ends(piece, asked.predict)
        rows = np.flatnonzero(self._is_known[known])
        keys = piece.rel[rows] * asked.entities + known[rows]
        question = np.searchsorted(asked.keys, keys)
        inside = np.flatnonzero(question < len(asked.keys))
        hit = inside[asked.keys[question[inside]] == keys[inside]]
        self._found.append(_distinct(question[hit] * asked.entities + answer[rows[hit]]))

    def answers(self) -> Answers:
        """Return the collected answers, and free their memory here."""
        found, self._found = np.concatenate(self._found), [np.empty(0, np.int64)]
        return Answers(_distinct(found), self._questions.entities)


def _distinct(keys: np.ndarray) -> np.ndarray:
    """Sort keys in place and drop repetitions.

    It is ten times as fast as ``np.unique``, which hashes them first.
    """
    keys.sort()
    new = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    return keys[new]
