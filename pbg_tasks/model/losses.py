"""Losses of edges and their negatives, with gradients (PBG's losses.py).

All are functions of the scores, and sums over edges, weighted by edge. Shapes: B edges, K negatives of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import softplus

from pbg_tasks.model.autograd import differentiate
from pbg_tasks.model.negatives import MASKED

if TYPE_CHECKING:
    from torch import Tensor


class LossGradient(NamedTuple):
    """Loss with its gradient.

    Attributes:
        value: scalar.
        positive_B: gradient of the edges' scores.
        negative_BK: gradient of the negatives' scores; it is written into the memory of the scores.
    """

    value: Tensor
    positive_B: Tensor
    negative_BK: Tensor


def _weigh(value: Tensor, weight_B: Tensor | None) -> Tensor:
    """Multiply each edge's row by its weight, in place."""
    if weight_B is None:
        return value
    return value.mul_(weight_B if value.dim() == 1 else weight_B.unsqueeze(1))


def logistic(positive_B: Tensor, negative_BK: Tensor, weight_B: Tensor | None, margin: float) -> LossGradient:
    """Sum w softplus(-s) + 1/K sum w softplus(t).

    Without negatives it is only the first part.
    """
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


class Loss:
    """Loss with its gradient from autograd; a subclass needs only ``forward``."""

    def forward(self, positive_B: Tensor, negative_BK: Tensor, margin: float) -> Tensor:
        """Return the loss of each edge, (B,), before weights.

        Args:
            positive_B: scores of the edges.
            negative_BK: scores of their negatives; masked ones are -1e9 and should cost next to nothing. K may be 0.
            margin: of the config.
        """
        raise NotImplementedError

    def __call__(self, positive_B: Tensor, negative_BK: Tensor, weight_B: Tensor | None, margin: float) -> LossGradient:
        """Sum the weighted losses; masked scores get no gradient."""

        def forward(positive_B: Tensor, negative_BK: Tensor) -> Tensor:
            return self.forward(positive_B, negative_BK, margin)

        losses_B, (grad_positive, grad_negative) = differentiate(forward, (positive_B, negative_BK), weight_B)
        value = losses_B.sum() if weight_B is None else losses_B @ weight_B
        masked_BK = negative_BK == MASKED
        return LossGradient(value, grad_positive, negative_BK.copy_(grad_negative).masked_fill_(masked_BK, 0))


class ForwardLoss(Loss):
    """Loss that is given as its forward function."""

    def __init__(self, forward: Callable[[Tensor, Tensor, float], Tensor]) -> None:
        self._forward = forward

    def forward(self, positive_B: Tensor, negative_BK: Tensor, margin: float) -> Tensor:
        return self._forward(positive_B, negative_BK, margin)


LossFunction = Callable[["Tensor", "Tensor", "Tensor | None", float], LossGradient]

LOSSES: dict[str, LossFunction] = {
    "logistic": logistic,
    "ranking": ranking,
    "softmax": softmax,
}
