"""Relation operators: what a relation does to an entity's embedding before it is compared.

Every operator works on rows: ``x_ND`` with parameters that are either shared by all rows or given row by row (a leading
axis N). ``backward`` is the analytic gradient; an operator that only defines ``forward`` gets it from autograd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    Params = Mapping[str, Tensor]


class Operator:
    """An operator on embeddings of dimension D.

    Attributes:
        stacked: parameter names, with the name PBG gives the parameter that is stacked over relations (dynamic mode).
        matrices: whether parameters are too large to be copied row by row; rows are then grouped by relation.
    """

    stacked: ClassVar[dict[str, str]] = {}
    matrices: ClassVar[bool] = False

    def initial(self, dimension: int) -> dict[str, Tensor]:
        """Return the parameters of one relation, those of the identity."""
        del dimension
        return {}

    def forward(self, x_ND: Tensor, params: Params) -> Tensor:
        """Apply it: (N, D) to (N, D)."""
        raise NotImplementedError

    def backward(self, x_ND: Tensor, params: Params, grad_ND: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the gradients of ``x_ND`` and of the parameters, in the shapes they were given in."""
        inputs = [value.detach().requires_grad_() for value in (x_ND, *params.values())]
        with torch.enable_grad():
            out_ND = self.forward(inputs[0], dict(zip(params, inputs[1:], strict=True)))
        grad_x, *grads = torch.autograd.grad(out_ND, inputs, grad_ND, materialize_grads=True)
        return grad_x, dict(zip(params, grads, strict=True))

    def cubes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return sum |x|^3 over numbers as this operator sees them, and its gradient (for the N3 regularizer)."""
        square = x.square()
        return (square * x.abs()).sum(), 3 * x * x.abs()

    def parameter_cubes(self, params: Params) -> tuple[Tensor, dict[str, Tensor]]:
        """Return sum |p|^3 over all parameters, and its gradients."""
        cubes = {name: self.cubes(value) for name, value in params.items()}
        total = torch.stack([value for value, _ in cubes.values()]).sum()
        return total, {name: grad for name, (_, grad) in cubes.items()}


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

    stacked: ClassVar = {"translation": "translations"}

    def initial(self, dimension: int) -> dict[str, Tensor]:
        return {"translation": torch.zeros(dimension)}

    def forward(self, x_ND: Tensor, params: Params) -> Tensor:
        return x_ND + params["translation"]

    def backward(self, x_ND: Tensor, params: Params, grad_ND: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        del x_ND
        return grad_ND, {"translation": _reduced(grad_ND, params["translation"])}


class Diagonal(Operator):
    """``diagonal``: d * x (DistMult, Yang et al. 2015)."""

    stacked: ClassVar = {"diagonal": "diagonals"}

    def initial(self, dimension: int) -> dict[str, Tensor]:
        return {"diagonal": torch.ones(dimension)}

    def forward(self, x_ND: Tensor, params: Params) -> Tensor:
        return params["diagonal"] * x_ND

    def backward(self, x_ND: Tensor, params: Params, grad_ND: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        diagonal = params["diagonal"]
        return diagonal * grad_ND, {"diagonal": _reduced(x_ND * grad_ND, diagonal)}


class ComplexDiagonal(Operator):
    """``complex_diagonal``: complex multiplication (ComplEx, Trouillon et al. 2016); the first half of x is real."""

    stacked: ClassVar = {"real": "real", "imag": "imag"}

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

    def cubes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        real, imag = x.chunk(2, dim=-1)
        square = real.square().addcmul_(imag, imag)
        modulus = square.sqrt()
        return (square * modulus).sum(), 3 * torch.cat((real * modulus, imag * modulus), dim=-1)

    def parameter_cubes(self, params: Params) -> tuple[Tensor, dict[str, Tensor]]:
        value, grad = self.cubes(torch.cat((params["real"], params["imag"]), dim=-1))
        real, imag = grad.chunk(2, dim=-1)
        return value, {"real": real, "imag": imag}


class Linear(Operator):
    """``linear``: W x, matrices (out, in) (RESCAL, Nickel et al. 2011)."""

    stacked: ClassVar = {"linear_transformation": "linear_transformations"}
    matrices: ClassVar = True

    def initial(self, dimension: int) -> dict[str, Tensor]:
        return {"linear_transformation": torch.eye(dimension)}

    def forward(self, x_ND: Tensor, params: Params) -> Tensor:
        return x_ND @ params["linear_transformation"].T

    def backward(self, x_ND: Tensor, params: Params, grad_ND: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return grad_ND @ params["linear_transformation"], {"linear_transformation": grad_ND.T @ x_ND}

    def cubes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        del x
        raise ConfigError(
            "regularizer N3 is not defined for the operators linear and affine: set regularization_coef: 0"
        )


class Affine(Linear):
    """``affine``: W x + t."""

    stacked: ClassVar = {**Linear.stacked, **Translation.stacked}

    def initial(self, dimension: int) -> dict[str, Tensor]:
        return super().initial(dimension) | {"translation": torch.zeros(dimension)}

    def forward(self, x_ND: Tensor, params: Params) -> Tensor:
        return super().forward(x_ND, params) + params["translation"]

    def backward(self, x_ND: Tensor, params: Params, grad_ND: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        grad_x, grads = super().backward(x_ND, params, grad_ND)
        return grad_x, grads | {"translation": grad_ND.sum(0)}


OPERATORS: dict[str, Operator] = {
    "none": Identity(),
    "translation": Translation(),
    "diagonal": Diagonal(),
    "complex_diagonal": ComplexDiagonal(),
    "linear": Linear(),
    "affine": Affine(),
}
