"""Losses over the scores of edges and of their negatives, with the gradient of the scores (PBG's losses.py).

All are sums over edges, weighted by edge. Shapes: B edges, K negatives of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import softplus

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class LossGradient(NamedTuple):
    """A loss with its gradient.

    Attributes:
        value: scalar.
        positive_B: gradient of the edges' scores.
        negative_BK: gradient of the negatives' scores; it lies in the memory the scores were given in.
    """

    value: Tensor
    positive_B: Tensor
    negative_BK: Tensor


def _weigh(value: Tensor, weight_B: Tensor | None) -> Tensor:
    """Multiply each edge's row in place."""
    if weight_B is None:
        return value
    return value.mul_(weight_B if value.dim() == 1 else weight_B.unsqueeze(1))


def logistic(positive_B: Tensor, negative_BK: Tensor, weight_B: Tensor | None, margin: float) -> LossGradient:
    """Sum w softplus(-s) + 1/K sum w softplus(t); without negatives only the first part."""
    del margin
    count = max(negative_BK.shape[1], 1)
    losses_B = softplus(-positive_B) + softplus(negative_BK).sum(1) / count
    grad_positive = -torch.sigmoid(-positive_B)
    grad_negative = negative_BK.sigmoid_().div_(count)
    return LossGradient(
        _weigh(losses_B, weight_B).sum(), _weigh(grad_positive, weight_B), _weigh(grad_negative, weight_B)
    )


def ranking(positive_B: Tensor, negative_BK: Tensor, weight_B: Tensor | None, margin: float) -> LossGradient:
    """Sum w max(0, margin - s + t)."""
    hinge_BK = negative_BK.sub_(positive_B.unsqueeze(1) - margin).clamp_min_(0)
    value = _weigh(hinge_BK.sum(1), weight_B).sum()
    grad_negative = _weigh(hinge_BK.sign_(), weight_B)
    return LossGradient(value, -grad_negative.sum(1), grad_negative)


def softmax(positive_B: Tensor, negative_BK: Tensor, weight_B: Tensor | None, margin: float) -> LossGradient:
    """Sum w (log(exp(s) + sum exp(t)) - s)."""
    del margin
    largest_B = torch.maximum(positive_B, negative_BK.amax(1)) if negative_BK.shape[1] else positive_B
    shares_BK = negative_BK.sub_(largest_B.unsqueeze(1)).exp_()
    own_B = (positive_B - largest_B).exp()
    total_B = shares_BK.sum(1) + own_B
    value = _weigh(total_B.log() + largest_B - positive_B, weight_B).sum()
    grad_positive = _weigh(own_B / total_B - 1, weight_B)
    return LossGradient(value, grad_positive, shares_BK.mul_(_weigh(total_B.reciprocal(), weight_B).unsqueeze(1)))


LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor | None, float], LossGradient]] = {
    "logistic": logistic,
    "ranking": ranking,
    "softmax": softmax,
}
