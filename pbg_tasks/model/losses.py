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


def _weighted(value: Tensor, weight_B: Tensor | None) -> Tensor:
    if weight_B is None:
        return value
    return value * (weight_B if value.dim() == 1 else weight_B.unsqueeze(1))


def logistic(positive_B: Tensor, negative_BK: Tensor, weight_B: Tensor | None, margin: float) -> LossGradient:
    """Sum w softplus(-s) + 1/K sum w softplus(t); without negatives only the first part."""
    del margin
    count = max(negative_BK.shape[1], 1)
    value = _weighted(softplus(-positive_B), weight_B).sum() + _weighted(softplus(negative_BK), weight_B).sum() / count
    grad_positive = _weighted(-torch.sigmoid(-positive_B), weight_B)
    grad_negative = negative_BK.sigmoid_().div_(count)
    return LossGradient(value, grad_positive, _weighted(grad_negative, weight_B))


def ranking(positive_B: Tensor, negative_BK: Tensor, weight_B: Tensor | None, margin: float) -> LossGradient:
    """Sum w max(0, margin - s + t)."""
    hinge = negative_BK.sub_(positive_B.unsqueeze(1) - margin).clamp_min_(0)
    value = _weighted(hinge, weight_B).sum()
    grad_negative = _weighted(hinge.sign_(), weight_B)
    return LossGradient(value, -grad_negative.sum(1), grad_negative)


def softmax(positive_B: Tensor, negative_BK: Tensor, weight_B: Tensor | None, margin: float) -> LossGradient:
    """Sum w (log(exp(s) + sum exp(t)) - s)."""
    del margin
    largest = positive_B
    if negative_BK.shape[1]:
        largest = torch.maximum(positive_B, negative_BK.amax(1))
    shares = negative_BK.sub_(largest.unsqueeze(1)).exp_()
    own = (positive_B - largest).exp()
    total = shares.sum(1) + own
    value = _weighted(total.log() + largest - positive_B, weight_B).sum()
    scale = _weighted(total.reciprocal(), weight_B)
    grad_positive = own * scale - (1 if weight_B is None else weight_B)
    return LossGradient(value, grad_positive, shares.mul_(scale.unsqueeze(1)))


LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor | None, float], LossGradient]] = {
    "logistic": logistic,
    "ranking": ranking,
    "softmax": softmax,
}
