"""The N3 regularizer: cubes of embeddings and operators (Lacroix et al. 2018), scaled as PBG does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from pbg_tasks.model.operators import Operator
    from pbg_tasks.model.relations import BoundOperator, ParamGrad


def n3(operator: Operator, x_ND: Tensor, coefficient: float) -> tuple[Tensor, Tensor]:
    """Return coefficient * sum |x|^3 of embeddings, complex numbers by their moduli, and its gradient.

    Raises:
        ConfigError: the operator is ``linear`` or ``affine``.
    """
    value, grad = operator.cubes(x_ND)
    return coefficient * value, grad.mul_(coefficient)


def n3_parameters(bound: BoundOperator, coefficient: float) -> tuple[Tensor, list[ParamGrad]]:
    """Return coefficient * sum |p|^3 of an operator's parameters as they are bound, and its gradients.

    With dynamic relations a relation counts once for each of its edges.
    """
    if not bound.params:
        return torch.zeros(()), []
    value, grads = bound.operator.parameter_cubes(bound.params)
    return coefficient * value, bound.named({name: coefficient * grad for name, grad in grads.items()})
