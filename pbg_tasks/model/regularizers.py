"""The N3 regularizer: cubes of embeddings and operators (Lacroix et al. 2018, as PBG has it)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from pbg_tasks.model.operators import ComplexDiagonal, Operator


def n3(operator: Operator, x: Tensor, coefficient: float) -> tuple[Tensor, Tensor]:
    """Return coefficient * sum |x|^3 and its gradient; complex numbers by their moduli."""
    from pbg_tasks.model.operators import ComplexDiagonal

    modulus = operator.moduli(x)
    value = coefficient * modulus.pow(3).sum()
    factor = 3 * coefficient * modulus
    if isinstance(operator, ComplexDiagonal):
        factor = torch.cat((factor, factor), dim=-1)
        return value, factor * x
    return value, factor * modulus * x.sign()
