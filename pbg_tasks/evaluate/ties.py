"""Range of scores in which a candidate ties with the true entity.

A matrix product rounds differently from block to block and even from column to column, so that equal embeddings get
scores that differ in their last bits. Compared bit by bit, a collapsed model would look good half of the time. Here, a
score within float32's rounding of the true score is computed again in float64. It ties with the true score when it is
still within the rounding of the vectors themselves; ties count against the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.config.comparators import BUILT_IN
from pbg_tasks.model.arrays import norms

if TYPE_CHECKING:
    from pbg_tasks.config import ModelConfig
    from pbg_tasks.config.comparators import Facts

# Relative to the product of the norms. No float32 product of up to some thousand dimensions has a larger error.
ROUNDING = 2e-6
# Largest change of a vector by its preparation, as a share of its norm. Equal vectors are this close afterwards.
MOVED = 2e-7


def tie_from(
    config: ModelConfig, query_ND: np.ndarray, true_ND: np.ndarray, score_N: np.ndarray, *, exact: bool = False
) -> np.ndarray:
    """Return the lowest score that ties with the true entity's, (N,).

    Args:
        config: of the model, with its comparator.
        query_ND: prepared queries.
        true_ND: prepared true entities.
        score_N: their scores.
        exact: whether the scores are float64, with no larger error than the vectors.
    """
    lowest = _lowest_exact if exact else _lowest
    facts = _facts(config.comparator)
    if config.bias:
        bias_N = query_ND[:, 0] + true_ND[:, 0]
        apart_N = (MOVED if exact else ROUNDING) * (np.abs(query_ND[:, 0]) + np.abs(true_ND[:, 0]))
        lowest_N: np.ndarray = lowest(facts, query_ND[:, 1:], true_ND[:, 1:], score_N - bias_N) + bias_N - apart_N
        return lowest_N
    return lowest(facts, query_ND, true_ND, score_N)


def tie_range(
    config: ModelConfig, query_ND: np.ndarray, true_ND: np.ndarray, score_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the range of scores in which rounding may have decided.

    Its ends are (N,) each; the arguments are those of ``tie_from``.
    """
    lowest_N = tie_from(config, query_ND, true_ND, score_N)
    return lowest_N, 2 * score_N - lowest_N


def _facts(comparator: str) -> Facts:
    if comparator in BUILT_IN:
        return BUILT_IN[comparator]
    from pbg_tasks.model.registry import comparator_facts  # takes torch

    return comparator_facts(comparator)


def _lowest(
    facts: Facts, query_ND: np.ndarray, true_ND: np.ndarray, score_N: np.ndarray, rounding: float = ROUNDING
) -> np.ndarray:
    query_N, true_N = norms(query_ND), norms(true_ND)
    squares_N = np.square(query_N + true_N)  # distances are computed as |q|^2 - 2 q.c + |c|^2
    lowest_N: np.ndarray
    if facts.metric == "inner_product":
        lowest_N = score_N - rounding * (query_N * true_N)
    elif facts.metric == "l2" and facts.squared:
        lowest_N = score_N - rounding * squares_N
    elif facts.metric == "l2":
        lowest_N = -np.sqrt(np.square(score_N) + rounding * squares_N)
    else:
        # The rounding of a package's comparator is unknown. The range allows for sums of products and for the score's
        # own size.
        lowest_N = score_N - rounding * (query_N * true_N + np.abs(score_N))
    return lowest_N


def _lowest_exact(facts: Facts, query_ND: np.ndarray, true_ND: np.ndarray, score_N: np.ndarray) -> np.ndarray:
    if facts.metric != "l2":
        return _lowest(facts, query_ND, true_ND, score_N, MOVED)
    moved_N = MOVED * (norms(query_ND) + norms(true_ND))
    lowest_N: np.ndarray
    lowest_N = -np.square(np.sqrt(np.abs(score_N)) + moved_N) if facts.squared else score_N - moved_N
    return lowest_N
