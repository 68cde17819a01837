"""Popularity: a predictor that only counts training edges.

Its answer is the entity that is most often on that side of that relation in training. A model that does not beat it has
not learnt which entities are connected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pbg_tasks.evaluate.questions import ends

if TYPE_CHECKING:
    from pbg_tasks.evaluate.filters import Answers
    from pbg_tasks.evaluate.ids import Triples
    from pbg_tasks.evaluate.questions import Questions
    from pbg_tasks.evaluate.tables import EntityTable
    from pbg_tasks.model.parameters import Side

_STEP = 1 << 20  # known answers that are processed together, some 70 bytes each
_WAITING = 1 << 22  # keys of edges that are counted together: to sort them takes less than to join their counts


class Counted(NamedTuple):
    """Number of occurrences of each key.

    Attributes:
        keys: int64 (K,), ascending, each once.
        counts: int64 (K,), above 0.
    """

    keys: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, keys: np.ndarray) -> Counted:
        """Count keys, in any order; they may be sorted in place."""
        if len(keys) and keys.max() < len(keys):  # as with one relation: to count in a table takes an eighth of sorting
            times = np.bincount(keys)
            present = np.flatnonzero(times)
            return cls(present, times[present])
        keys.sort()
        first = np.ones(len(keys), bool)
        np.not_equal(keys[1:], keys[:-1], out=first[1:])
        starts = np.flatnonzero(first)
        return cls(keys[starts], np.diff(starts, append=len(keys)))

    def joined(self, other: Counted) -> Counted:
        """Return the sum of both, in memory that may be theirs.

        Both must not be empty.
        """
        place = np.searchsorted(self.keys, other.keys)
        new = self.keys[np.minimum(place, len(self.keys) - 1)] != other.keys
        self.counts[place[~new]] += other.counts[~new]
        added = place[new] + np.arange(np.count_nonzero(new))  # their positions in the result
        if not len(added):
            return self
        old = np.ones(len(self.keys) + len(added), bool)
        old[added] = False
        result = Counted(*(np.empty(len(old), np.int64) for _ in range(2)))
        for column, mine, its in zip(result, self, other, strict=True):
            column[old], column[added] = mine, its[new]
        return result


class Popularity:
    """Counts of the entities on one side of each relation.

    Args:
        predict: that side.
        entities: a number above any entity's number.
    """

    def __init__(self, predict: Side, entities: int) -> None:
        self._predict, self._entities = predict, entities
        # Each is more than twice as long as the next, so that a key is moved only a few times, however many pieces
        # there are.
        self._runs: list[Counted] = []
        self._waiting: list[np.ndarray] = []  # keys that are not counted yet: fewer runs are joined than pieces come

    def add(self, piece: Triples) -> None:
        """Count training edges."""
        _, answer = ends(piece, self._predict)
        self._waiting.append(piece.rel * self._entities + answer)
        if sum(map(len, self._waiting)) >= _WAITING:
            self._count_waiting()

    def _count_waiting(self) -> None:
        keys, self._waiting = np.concatenate(self._waiting or [np.empty(0, np.int64)]), []
        if not len(keys):
            return
        self._runs.append(Counted.of(keys))
        while len(self._runs) > 1 and len(self._runs[-2].keys) <= 2 * len(self._runs[-1].keys):
            self._join_last()

    def _join_last(self) -> None:
        shorter, longer = sorted((self._runs.pop(), self._runs.pop()), key=lambda run: len(run.keys))
        self._runs.append(longer.joined(shorter))

    def _counted(self) -> Counted:
        """Return all counts; the keys are ``rel * entities + entity``."""
        self._count_waiting()
        while len(self._runs) > 1:
            self._join_last()
        return self._runs[0] if self._runs else Counted.of(np.empty(0, np.int64))

    def ranks(self, edges: np.ndarray, questions: Questions, answers: Answers, asked: EntityTable) -> np.ndarray:
        """Return the filtered ranks, from 1, of some held-out edges.

        Ties count as better.

        Args:
            edges: int64 (N,), rows of the held-out edges, whose answers have one entity type.
            questions: of all held-out edges.
            answers: known answers of these edges; only candidates.
            asked: the candidates.
        """
        question, true = questions.of_edge[edges], questions.true[edges]
        rel, eligible = questions.rel[question], asked.eligible(true)
        own = self._count(rel, true)
        no_worse = self._no_worse(rel, own, asked) - (eligible & (own > 0))
        never = own == 0  # every candidate ties with an entity without training edges there
        no_worse[never] = (asked.candidates - eligible.astype(np.int64))[never]
        ranks: np.ndarray = 1 + no_worse - self._known_no_worse(question, rel, true, own, answers)
        return ranks

    def _count(self, rel: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Look up the number of occurrences of each entity: int64 (N,)."""
        counted, keys = self._counted(), rel * self._entities + number
        if not len(counted.keys):
            return np.zeros(len(keys), np.int64)
        place = np.minimum(np.searchsorted(counted.keys, keys), len(counted.keys) - 1)
        return np.where(counted.keys[place] == keys, counted.counts[place], 0)

    def _no_worse(self, rel: np.ndarray, own: np.ndarray, asked: EntityTable) -> np.ndarray:
        """Count candidates with at least ``own`` occurrences: int64 (N,).

        The result is for entities with ``own`` above 0.
        """
        counted = self._counted()
        kept = asked.eligible(counted.keys % self._entities)
        base = int(counted.counts.max(initial=0)) + 1
        ordered = counted.keys[kept]  # computed in place, because there may be as many keys as training edges
        ordered //= self._entities
        ordered *= base
        ordered += counted.counts[kept]
        ordered.sort()
        counts: np.ndarray = np.searchsorted(ordered, (rel + 1) * base) - np.searchsorted(ordered, rel * base + own)
        return counts

    def _known_no_worse(
        self, question: np.ndarray, rel: np.ndarray, true: np.ndarray, own: np.ndarray, answers: Answers
    ) -> np.ndarray:
        """Count other known answers with at least ``own`` occurrences.

        The result is int64 (N,). The answers of a question are counted once, however many edges ask it.
        """
        order = np.argsort(question, kind="stable")
        asked, first = np.unique(question[order], return_index=True)
        rel_of, first = rel[order[first]], np.append(first, len(order))
        base = int(self._counted().counts.max(initial=0)) + 1
        result = -answers.hold(question, true).astype(np.int64)  # the true entity is among them: leave it out
        for row, answer in answers.pieces(asked, _STEP):
            ordered = np.sort(row * base + self._count(rel_of[row], answer))
            here = slice(first[row[0]], first[row[-1] + 1])
            edges = order[here]
            place = np.searchsorted(asked, question[edges])
            ends_at = np.searchsorted(ordered, (place + 1) * base)
            result[edges] += ends_at - np.searchsorted(ordered, place * base + own[edges])
        return result
