"""Relation operators: what a relation does to an entity's embedding before it is compared.

Every operator works on rows: ``x_ND`` with parameters that are either shared by all rows (standard mode, one relation a
batch) or given row by row (dynamic mode, gathered by relation id). ``backward`` is the analytic gradient; an operator that
only defines ``forward`` gets it from autograd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    Params = Mapping[str, Tensor]


class Operator:
    """An operator on embeddings of dimension D.

    Attributes:
        plural: parameter names in standard mode, with the name PBG gives the stacked one in dynamic mode.
    """

    plural: ClassVar[dict[str, str]] = {}

    def initial(self, dimension: int) -> dict[str, Tensor]:
        """Return the parameters of one relation, those of the identity."""
        del dimension
        return {}

    def forward(self, x_ND: Tensor, params: Params) -> Tensor:
        """Apply it: (N, D) to (N, D)."""
        raise NotImplementedError

    def backward(self, x_ND: Tensor, params: Params, grad_ND: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the gradients of ``x_ND`` and of the parameters, in the shapes they were given in."""
        names = list(params)

        def apply(x: Tensor, *values: Tensor) -> Tensor:
            return self.forward(x, dict(zip(names, values, strict=True)))

        _, pullback = torch.func.vjp(apply, x_ND, *params.values())
        grad_x, *grads = pullback(grad_ND)
        return grad_x, dict(zip(names, grads, strict=True))

    def moduli(self, x: Tensor) -> Tensor:
        """Return what the N3 regularizer cubes: absolute values, or moduli for complex numbers."""
        return x.abs()


def _reduced(grad: Tensor, like: Tensor) -> Tensor:
    """Sum a row-wise gradient when the parameter is shared by all rows."""
    return grad.sum(0) if like.dim() < grad.dim() else grad


class Identity(Operator):
    """``none``: x."""

    def forward(self, x_ND: Tensor, params: Params) -> Tensor:
        del params
        return x_ND

    def backward(self, x_ND: Tensor, params: Params, grad_ND: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        del x_ND, params
        return grad_ND, {}


class Translation(Operator):
    """``translation``: x + t (TransE, Bordes et al. 2013)."""

    plural: ClassVar = {"translation": "translations"}

    def initial(self, dimension: int) -> dict[str, Tensor]:
        return {"translation": torch.zeros(dimension)}

    def forward(self, x_ND: Tensor, params: Params) -> Tensor:
        return x_ND + params["translation"]

    def backward(self, x_ND: Tensor, params: Params, grad_ND: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        del x_ND
        return grad_ND, {"translation": _reduced(grad_ND, params["translation"])}


class Diagonal(Operator):
    """``diagonal``: d * x (DistMult, Yang et al. 2015)."""

    plural: ClassVar = {"diagonal": "diagonals"}

    def initial(self, dimension: int) -> dict[str, Tensor]:
        return {"diagonal": torch.ones(dimension)}

    def forward(self, x_ND: Tensor, params: Params) -> Tensor:
        return params["diagonal"] * x_ND

    def backward(self, x_ND: Tensor, params: Params, grad_ND: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        diagonal = params["diagonal"]
        return diagonal * grad_ND, {"diagonal": _reduced(x_ND * grad_ND, diagonal)}


class ComplexDiagonal(Operator):
    """``complex_diagonal``: complex multiplication, first half of x real, second imaginary (ComplEx, Trouillon 2016)."""

    plural: ClassVar = {"real": "real", "imag": "imag"}

    def initial(self, dimension: int) -> dict[str, Tensor]:
        return {"real": torch.ones(dimension // 2), "imag": torch.zeros(dimension // 2)}

    def forward(self, x_ND: Tensor, params: Params) -> Tensor:
        real, imag = x_ND.chunk(2, dim=-1)
        a, b = params["real"], params["imag"]
        return torch.cat((real * a - imag * b, real * b + imag * a), dim=-1)

    def backward(self, x_ND: Tensor, params: Params, grad_ND: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        real, imag = x_ND.chunk(2, dim=-1)
        grad_real, grad_imag = grad_ND.chunk(2, dim=-1)
        a, b = params["real"], params["imag"]
        grad_x = torch.cat((grad_real * a + grad_imag * b, grad_imag * a - grad_real * b), dim=-1)
        return grad_x, {
            "real": _reduced(grad_real * real + grad_imag * imag, a),
            "imag": _reduced(grad_imag * real - grad_real * imag, b),
        }

    def moduli(self, x: Tensor) -> Tensor:
        real, imag = x.chunk(2, dim=-1)
        return (real * real + imag * imag).sqrt()


class Linear(Operator):
    """``linear``: W x, matrices (out, in) (RESCAL, Nickel et al. 2011)."""

    plural: ClassVar = {"linear_transformation": "linear_transformations"}

    def initial(self, dimension: int) -> dict[str, Tensor]:
        return {"linear_transformation": torch.eye(dimension)}

    def forward(self, x_ND: Tensor, params: Params) -> Tensor:
        matrix = params["linear_transformation"]
        if matrix.dim() == 2:  # noqa: PLR2004 - one matrix for all rows
            return x_ND @ matrix.T
        return (matrix @ x_ND.unsqueeze(-1)).squeeze(-1)

    def backward(self, x_ND: Tensor, params: Params, grad_ND: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        matrix = params["linear_transformation"]
        if matrix.dim() == 2:  # noqa: PLR2004 - one matrix for all rows
            return grad_ND @ matrix, {"linear_transformation": grad_ND.T @ x_ND}
        grad_x = (grad_ND.unsqueeze(-2) @ matrix).squeeze(-2)
        return grad_x, {"linear_transformation": grad_ND.unsqueeze(-1) * x_ND.unsqueeze(-2)}


class Affine(Linear):
    """``affine``: W x + t."""

    plural: ClassVar = {**Linear.plural, **Translation.plural}

    def initial(self, dimension: int) -> dict[str, Tensor]:
        return super().initial(dimension) | {"translation": torch.zeros(dimension)}

    def forward(self, x_ND: Tensor, params: Params) -> Tensor:
        return super().forward(x_ND, params) + params["translation"]

    def backward(self, x_ND: Tensor, params: Params, grad_ND: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        grad_x, grads = super().backward(x_ND, params, grad_ND)
        return grad_x, grads | {"translation": _reduced(grad_ND, params["translation"])}


OPERATORS: dict[str, Operator] = {
    "none": Identity(),
    "translation": Translation(),
    "diagonal": Diagonal(),
    "complex_diagonal": ComplexDiagonal(),
    "linear": Linear(),
    "affine": Affine(),
}
