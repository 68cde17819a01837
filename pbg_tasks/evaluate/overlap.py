"""Overlap of the nearest neighbours of two nights.

It is the share of the nearest neighbours on which both agree, for a sample of entities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from pbg_tasks.evaluate.tables import MAX_TILE_SCORES

if TYPE_CHECKING:
    from pbg_tasks.evaluate.drift import View

NEIGHBOURS = 10
QUERIES = 500
_GATHERED_ROWS = 1 << 13
_FEWEST_ROWS = 256


def draw_queries(known: np.ndarray, seed: int) -> np.ndarray:
    """Draw the entities whose neighbours are compared, ascending.

    They are ``QUERIES`` of those that both nights know, or all.
    """
    if len(known) <= QUERIES:
        return known
    return np.sort(np.random.default_rng(seed).choice(known, size=QUERIES, replace=False, shuffle=False))


def neighbour_overlap(now: View, before: View, queries: np.ndarray, count: int = NEIGHBOURS) -> np.ndarray:
    """Return the share of nearest neighbours common to two nights.

    The result is float32 (Q,), by query. Neighbours are exact: the nearest of all candidates of the views' tables by
    the model's own comparator, as in a look-up, without the query itself. They are compared within each night, so a
    rotation between the vectors of the two nights does not matter.

    Args:
        now: tonight.
        before: the other night, with the same candidates.
        queries: int64 (Q,), numbers of entities that both know.
        count: largest number of neighbours; NaN is returned where there is no candidate.
    """
    count = min(count, now.table.candidates - 1)
    if count < 1:
        return np.full(len(queries), np.nan, np.float32)
    ours, theirs = (_nearest(view, queries, count) for view in (now, before))
    agreed: np.ndarray = (ours[:, :, np.newaxis] == theirs[:, np.newaxis, :]).any(axis=2).mean(axis=1, dtype=np.float32)
    return agreed


def _nearest(view: View, queries: np.ndarray, count: int) -> np.ndarray:
    """Return the numbers of each query's nearest candidates.

    The result is int64 (Q, count).
    """
    query_QD = view.similarity.candidates(view.table.gather(queries, _GATHERED_ROWS))
    best_QK = torch.full((len(queries), count), -torch.inf)
    number_QK = torch.full((len(queries), count), -1)
    for block in view.table.blocks(max(MAX_TILE_SCORES // len(queries), _FEWEST_ROWS)):  # scores stay in the cache
        score_QB = view.similarity.score(query_QD, view.similarity.candidates(torch.from_numpy(block.rows)))
        own = block.columns(queries)
        (there,) = np.nonzero(own >= 0)
        score_QB[there, own[there]] = -torch.inf
        (better_R,) = torch.nonzero(score_QB.amax(dim=1) > best_QK[:, -1], as_tuple=True)  # few, after some blocks
        best_RB, place_RB = score_QB[better_R].topk(min(count, len(block.numbers)))
        number_RB = torch.from_numpy(block.numbers)[place_RB]
        best_QK[better_R], place_RK = torch.cat((best_QK[better_R], best_RB), dim=1).topk(count)
        number_QK[better_R] = torch.cat((number_QK[better_R], number_RB), dim=1).gather(1, place_RK)
    return number_QK.numpy()
