"""Regularizers: penalties on large numbers.

A regularizer is a function of moduli. The operator defines which real numbers make up one number
(``Operator.components``): for complex_diagonal the numbers are complex, for all others real.

The embeddings of both ends of every edge are penalised as they are compared, after operator and preparation; so are the
operators' parameters. With dynamic relations a relation's parameters count once for each of its edges. In standard mode
all edges of a batch share one relation's parameters, and ``Regularizer.times`` is how often those count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pbg_tasks.model.autograd import differentiate
from pbg_tasks.model.operators import ComplexDiagonal, Diagonal, Translation

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pbg_tasks.model.operators import Operator
    from pbg_tasks.model.relations import BoundOperator, ParamGrad


class Regularizer:
    """Penalty on each number; a subclass needs only ``forward``."""

    def forward(self, modulus: Tensor) -> Tensor:
        """Return the penalty of each number from its modulus, elementwise.

        A modulus is not negative.
        """
        raise NotImplementedError

    def slope(self, modulus: Tensor) -> Tensor:
        """Return the derivative divided by the modulus, elementwise.

        Multiplied by the number itself, it is the gradient.
        """
        _, (derivative,) = differentiate(self.forward, (modulus,))
        return torch.where(modulus > 0, derivative / modulus, torch.zeros_like(modulus))

    def times(self, operator: Operator, *, edges: int, chunks: int) -> int:
        """Return how often the parameters of a batch's relation count.

        By default they count once for each edge.
        """
        del operator, chunks
        return edges


class N3Edge(Regularizer):
    """Cube of the modulus (``N3_edge``), with operators counted for each edge.

    It is the nuclear 3-norm of Lacroix et al. 2018. Operators are counted so in both modes.
    """

    def forward(self, modulus: Tensor) -> Tensor:
        return modulus.square() * modulus

    def slope(self, modulus: Tensor) -> Tensor:
        return 3 * modulus


class N3(N3Edge):
    """Cube of the modulus (``N3``), with operators counted as in PBG.

    In standard mode PBG counts them once an edge chunk, so that their penalty depends on ``num_batch_negs``. It refuses
    ``linear`` and ``affine``; these, and operators that PBG lacks, count once an edge.
    """

    def times(self, operator: Operator, *, edges: int, chunks: int) -> int:
        return chunks if type(operator) in {Translation, Diagonal, ComplexDiagonal} else edges


class L2(Regularizer):
    """Square of the modulus (``L2``).

    Operators count once an edge, in both modes.
    """

    def forward(self, modulus: Tensor) -> Tensor:
        return modulus.square()

    def slope(self, modulus: Tensor) -> Tensor:
        return torch.full_like(modulus, 2.0)


class ForwardRegularizer(Regularizer):
    """Regularizer that is given as its forward function."""

    def __init__(self, forward: Callable[[Tensor], Tensor]) -> None:
        self._forward = forward

    def forward(self, modulus: Tensor) -> Tensor:
        return self._forward(modulus)


REGULARIZERS: dict[str, Regularizer] = {"N3": N3(), "N3_edge": N3Edge(), "L2": L2()}


def penalty_of_rows(
    regularizer: Regularizer, operator: Operator, x_ND: Tensor, coefficient: float
) -> tuple[Tensor, Tensor]:
    """Return the weighted penalty of embeddings (a scalar), and its gradient."""
    parts = x_ND.chunk(operator.components, dim=-1)
    penalty, grads = _penalty(regularizer, parts)
    grad_ND = grads[0] if len(grads) == 1 else torch.cat(grads, dim=-1)
    return coefficient * penalty.sum(), grad_ND.mul_(coefficient)


def penalty_of_parameters(
    regularizer: Regularizer, bound: BoundOperator, coefficient: float
) -> tuple[Tensor, list[ParamGrad]]:
    """Return the weighted penalty of an operator's parameters, and its gradients.

    With dynamic relations a relation counts once for each row to which it is bound.
    """
    params, counts_M = bound.counted()
    total = torch.zeros(())
    found: dict[str, Tensor] = {}
    for names in bound.operator.numbers(params):
        penalty, grads = _penalty(regularizer, [params[name] for name in names])
        if counts_M is not None:
            penalty = penalty.flatten(1).sum(1) * counts_M
            for grad in grads:
                grad.mul_(counts_M.view(-1, *[1] * (grad.dim() - 1)))
        total = total + coefficient * penalty.sum()
        found.update({name: grad.mul_(coefficient) for name, grad in zip(names, grads, strict=True)})
    return total, bound.named(found)


def _penalty(regularizer: Regularizer, parts: tuple[Tensor, ...] | list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return the penalties of numbers and the gradients of their parts.

    The penalties are elementwise.
    """
    if len(parts) == 1:
        modulus = parts[0].abs()
    else:
        square = parts[0].square()
        for part in parts[1:]:
            square.addcmul_(part, part)
        modulus = square.sqrt_()
    slope = regularizer.slope(modulus)
    return regularizer.forward(modulus), [part * slope for part in parts]
