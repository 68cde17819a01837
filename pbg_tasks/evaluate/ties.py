"""From which score on a candidate counts as no worse than the true entity.

A matrix product rounds differently from block to block and even from column to column, so that equal embeddings get
scores that differ in their last bits. Compared bit by bit, a collapsed model would look good half of the time. Here,
whatever lies within float32's rounding of the true score ties with it, and ties count against the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from pbg_tasks.config import ModelConfig

# Of the product of the norms: no float32 product of up to some thousand dimensions is further off.
ROUNDING = 2e-6


def tie_from(config: ModelConfig, query_ND: Tensor, true_ND: Tensor, score_N: Tensor) -> Tensor:
    """Return the lowest score that ties with the true entity's, (N,).

    Args:
        config: which comparator it is.
        query_ND: prepared queries.
        true_ND: prepared true entities.
        score_N: their scores.
    """
    if config.bias:
        bias_N = query_ND[:, 0] + true_ND[:, 0]
        apart_N = ROUNDING * (query_ND[:, 0].abs() + true_ND[:, 0].abs())
        return _lowest(config.comparator, query_ND[:, 1:], true_ND[:, 1:], score_N - bias_N) + bias_N - apart_N
    return _lowest(config.comparator, query_ND, true_ND, score_N)


def _lowest(comparator: str, query_ND: Tensor, true_ND: Tensor, score_N: Tensor) -> Tensor:
    query_N, true_N = query_ND.norm(dim=1), true_ND.norm(dim=1)
    if comparator in {"dot", "cos"}:
        return torch.sub(score_N, query_N * true_N, alpha=ROUNDING)
    squares_N = (query_N + true_N).square()  # distances come from |q|^2 - 2 q.c + |c|^2
    if comparator == "squared_l2":
        return torch.sub(score_N, squares_N, alpha=ROUNDING)
    if comparator == "l2":
        return torch.add(score_N.square(), squares_N, alpha=ROUNDING).sqrt().neg()
    # A package's own: how it rounds is not known. Allow for sums of products and for its own size.
    return torch.sub(score_N, query_N * true_N + score_N.abs(), alpha=ROUNDING)
