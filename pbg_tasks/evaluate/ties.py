"""Range of scores in which a candidate ties with the true entity.

A matrix product rounds differently from block to block and even from column to column, so that equal embeddings get
scores that differ in their last bits. Compared bit by bit, a collapsed model would look good half of the time. Here, a
score within float32's rounding of the true score is computed again in float64. It ties with the true score when it is
still within the rounding of the vectors themselves; ties count against the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pbg_tasks.model.registry import comparator_facts

if TYPE_CHECKING:
    from torch import Tensor

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.config.comparators import Facts

# Relative to the product of the norms. No float32 product of up to some thousand dimensions has a larger error.
ROUNDING = 2e-6
# Largest change of a vector by its preparation, as a share of its norm. Equal vectors are this close afterwards.
MOVED = 2e-7


def tie_from(config: ModelConfig, query_ND: Tensor, true_ND: Tensor, score_N: Tensor, *, exact: bool = False) -> Tensor:
    """Return the lowest score that ties with the true entity's, (N,).

    Args:
        config: of the model, with its comparator.
        query_ND: prepared queries.
        true_ND: prepared true entities.
        score_N: their scores.
        exact: whether the scores are float64, with no larger error than the vectors.
    """
    lowest = _lowest_exact if exact else _lowest
    facts = comparator_facts(config.comparator)
    if config.bias:
        bias_N = query_ND[:, 0] + true_ND[:, 0]
        apart_N = (MOVED if exact else ROUNDING) * (query_ND[:, 0].abs() + true_ND[:, 0].abs())
        return lowest(facts, query_ND[:, 1:], true_ND[:, 1:], score_N - bias_N) + bias_N - apart_N
    return lowest(facts, query_ND, true_ND, score_N)


def tie_range(config: ModelConfig, query_ND: Tensor, true_ND: Tensor, score_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return the range of scores in which rounding may have decided.

    Its ends are (N,) each; the arguments are those of ``tie_from``.
    """
    lowest_N = tie_from(config, query_ND, true_ND, score_N)
    return lowest_N, 2 * score_N - lowest_N


def _lowest(facts: Facts, query_ND: Tensor, true_ND: Tensor, score_N: Tensor, rounding: float = ROUNDING) -> Tensor:
    query_N, true_N = query_ND.norm(dim=1), true_ND.norm(dim=1)
    if facts.metric == "inner_product":
        return torch.sub(score_N, query_N * true_N, alpha=rounding)
    squares_N = (query_N + true_N).square()  # distances are computed as |q|^2 - 2 q.c + |c|^2
    if facts.metric == "l2" and facts.squared:
        return torch.sub(score_N, squares_N, alpha=rounding)
    if facts.metric == "l2":
        return torch.add(score_N.square(), squares_N, alpha=rounding).sqrt().neg()
    # The rounding of a package's comparator is unknown. The range allows for sums of products and for the score's own
    # size.
    return torch.sub(score_N, query_N * true_N + score_N.abs(), alpha=rounding)


def _lowest_exact(facts: Facts, query_ND: Tensor, true_ND: Tensor, score_N: Tensor) -> Tensor:
    moved_N: Tensor = MOVED * (query_ND.norm(dim=1) + true_ND.norm(dim=1))
    if facts.metric == "l2" and not facts.squared:
        return score_N - moved_N
    if facts.metric == "l2":
        return -(score_N.abs().sqrt() + moved_N).square()
    return _lowest(facts, query_ND, true_ND, score_N, MOVED)
