"""Which candidates of a query are known to be right: they are left out of the filtered rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from pbg_tasks.evaluate.ids import Triples

Side = Literal["lhs", "rhs"]


class KnownPairs(NamedTuple):
    """Candidates to leave out, sorted by query.

    Attributes:
        query: int64 (M,), row of the held-out edge.
        candidate: int64 (M,), number of an entity that is right too, never the edge's own.
    """

    query: np.ndarray
    candidate: np.ndarray

    def of(self, rows: np.ndarray, total: int) -> KnownPairs:
        """Return the pairs of some of ``total`` queries, counted anew; ``rows`` ascend."""
        place = np.full(total, -1)
        place[rows] = np.arange(len(rows))
        query = place[self.query]
        kept = query >= 0
        return KnownPairs(query[kept], self.candidate[kept])


class KnownAnswers:
    """Joins held-out edges with all known ones on relation and known end, one piece of the known ones at a time.

    Of the known edges only the answers to what is asked are kept.

    Args:
        asked: held-out edges (Q).
        predict: the side whose candidates are ranked.
        entities: more than any entity's number.
    """

    def __init__(self, asked: Triples, predict: Side, entities: int) -> None:
        self._asked, self._predict, self._entities = asked, predict, entities
        self._keys = self._key(asked)
        self._wanted = np.unique(self._keys)
        self._found: list[np.ndarray] = [np.empty((2, 0), np.int64)]

    def _key(self, triples: Triples) -> np.ndarray:
        known = triples.rhs if self._predict == "lhs" else triples.lhs
        keys: np.ndarray = triples.rel * self._entities + known
        return keys

    def _answers(self, triples: Triples) -> np.ndarray:
        return triples.lhs if self._predict == "lhs" else triples.rhs

    def add(self, piece: Triples) -> None:
        """Take note of known edges."""
        if not len(self._wanted):
            return
        keys = self._key(piece)
        group = np.searchsorted(self._wanted, keys)
        hit = np.flatnonzero(self._wanted[np.minimum(group, len(self._wanted) - 1)] == keys)
        self._found.append(np.stack((group[hit], self._answers(piece)[hit])))

    def pairs(self) -> KnownPairs:
        """Return, for every held-out edge, the other entities that are right."""
        group, answer = np.unique(np.concatenate(self._found, axis=1), axis=1)
        starts = np.searchsorted(group, np.arange(len(self._wanted) + 1))
        asked_group = np.searchsorted(self._wanted, self._keys)
        sizes = starts[asked_group + 1] - starts[asked_group]
        query = np.repeat(np.arange(len(self._asked)), sizes)
        within = np.arange(len(query)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        candidate = answer[np.repeat(starts[asked_group], sizes) + within]
        other = candidate != self._answers(self._asked)[query]
        return KnownPairs(query[other], candidate[other])
