"""Which candidates of a query are known to be right: they are left out of the filtered rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pbg_tasks.evaluate.ids import Triples

Side = Literal["lhs", "rhs"]


class KnownPairs(NamedTuple):
    """Candidates to leave out, sorted by query and candidate.

    Attributes:
        query: int64 (M,), row of the held-out edge.
        candidate: int64 (M,), number of an entity that is right too, never the edge's own.
    """

    query: np.ndarray
    candidate: np.ndarray


def _key(triples: Triples, predict: Side, entities: int) -> np.ndarray:
    known = triples.rhs if predict == "lhs" else triples.lhs
    keys: np.ndarray = triples.rel * entities + known
    return keys


def known_pairs(asked: Triples, known: Iterable[Triples], predict: Side, entities: int) -> KnownPairs:
    """Join the held-out edges with all known ones on relation and known end.

    Args:
        asked: held-out edges (Q).
        known: every edge known to be true, in pieces; only what is asked for is kept.
        predict: the side whose candidates are ranked.
        entities: number of entities of the *known* end's type.
    """
    keys = _key(asked, predict, entities)
    wanted = np.unique(keys)
    found: list[np.ndarray] = []
    for piece in known:
        piece_keys = _key(piece, predict, entities)
        at = np.searchsorted(wanted, piece_keys)
        hit = np.flatnonzero((at < len(wanted)) & (wanted[np.minimum(at, len(wanted) - 1)] == piece_keys))
        answers = piece.lhs if predict == "lhs" else piece.rhs
        found.append(np.stack((at[hit], answers[hit])))
    group, answer = np.unique(np.concatenate(found, axis=1), axis=1) if found else np.empty((2, 0), np.int64)
    starts = np.searchsorted(group, np.arange(len(wanted) + 1))
    groups = np.searchsorted(wanted, keys)
    sizes = starts[groups + 1] - starts[groups]
    query = np.repeat(np.arange(len(asked)), sizes)
    within = np.arange(len(query)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    candidate = answer[np.repeat(starts[groups], sizes) + within]
    own = (asked.lhs if predict == "lhs" else asked.rhs)[query]
    other = candidate != own
    return KnownPairs(query[other], candidate[other])
