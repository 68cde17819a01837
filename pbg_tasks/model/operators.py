"""Relation operators: functions of an embedding, applied before comparison.

Every operator works on rows: ``x_ND`` with parameters that are either shared by all rows or given row by row (a leading
axis N). ``backward`` is the analytic gradient; an operator that only defines ``initial`` and ``forward`` gets it from
autograd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from pbg_tasks.model.arrays import INITIAL
from pbg_tasks.model.autograd import differentiate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    Params = Mapping[str, Tensor]


DAMPING = 0.1
"""Damping of an inverse: a number whose square is this share of the mean square is halved by the damping instead of
inverted.
"""


class Operator:
    """Operator on embeddings of dimension D.

    A subclass needs ``initial`` and ``forward``.

    Attributes:
        stacked: PBG's name of a parameter that is stacked over relations (dynamic mode), where that is not the plural
            with s.
        matrices: whether parameters are too large to be copied row by row, or ``forward`` only takes shared ones; rows
            are then grouped by relation.
        components: how many real numbers make up one number, for regularizers: an embedding consists of that many
            blocks; a complex one is the real parts and then the imaginary ones.
    """

    stacked: ClassVar[Mapping[str, str]] = {}
    matrices: ClassVar[bool] = False
    components: ClassVar[int] = 1

    def initial(self, dimension: int) -> dict[str, Tensor]:
        """Return the initial parameters of one relation, by name.

        They are usually those of the identity.
        """
        del dimension
        return {}

    def forward(self, x_ND: Tensor, params: Params) -> Tensor:
        """Apply the operator: (N, D) to (N, D)."""
        raise NotImplementedError

    def backward(self, x_ND: Tensor, params: Params, grad_ND: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the gradients of ``x_ND`` and of the parameters.

        They have the shapes of the arguments.
        """

        def forward(x_ND: Tensor, *values: Tensor) -> Tensor:
            return self.forward(x_ND, dict(zip(params, values, strict=True)))

        # Copies, because autograd refuses to go back when another worker (HOGWILD) has changed a parameter meanwhile.
        values = [value.clone() for value in params.values()]
        _, (grad_x, *grads) = differentiate(forward, (x_ND, *values), grad_ND)
        return grad_x, dict(zip(params, grads, strict=True))

    def inverse(self, y_ND: Tensor, params: Params) -> Tensor:
        """Return vectors (N, D) that ``forward`` brings close to ``y_ND``.

        They are the exact inverse up to a little damping. The default is for operators without a formula: the direction
        in which <forward(x), y> grows at x = y.
        """
        return self.backward(y_ND, params, y_ND)[0]

    def stacked_name(self, name: str) -> str:
        """Return the name of a parameter that is stacked over relations."""
        return self.stacked.get(name, f"{name}s")

    def numbers(self, params: Params) -> list[tuple[str, ...]]:
        """Return the groups of parameters that are parts of the same numbers.

        Regularizers need them; by default each parameter is a group of its own.
        """
        return [(name,) for name in params]


def _identity(operator: str, dimension: int) -> dict[str, Tensor]:
    """Return the parameters with which a built-in operator is the identity."""
    return {name: torch.from_numpy(value) for name, value in INITIAL[operator](dimension).items()}


def _reduced(grad: Tensor, like: Tensor) -> Tensor:
    """Sum a row-wise gradient when the parameter is shared by all rows."""
    return grad.sum(0) if like.dim() < grad.dim() else grad


def _damped(squares: Tensor) -> Tensor:
    """Return squares by which one can divide.

    Squares far below the mean, by which an inverse would become too large, are enlarged.
    """
    return squares + DAMPING * squares.mean(-1, keepdim=True) + torch.finfo(squares.dtype).tiny


class Identity(Operator):
    """Identity (``none``): x."""

    def forward(self, x_ND: Tensor, params: Params) -> Tensor:
        del params
        return x_ND

    def backward(self, x_ND: Tensor, params: Params, grad_ND: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        del x_ND, params
        return grad_ND, {}


class Translation(Operator):
    """Translation (``translation``): x + t (TransE, Bordes et al. 2013)."""

    def initial(self, dimension: int) -> dict[str, Tensor]:
        return _identity("translation", dimension)

    def forward(self, x_ND: Tensor, params: Params) -> Tensor:
        return x_ND + params["translation"]

    def backward(self, x_ND: Tensor, params: Params, grad_ND: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        del x_ND
        return grad_ND, {"translation": _reduced(grad_ND, params["translation"])}

    def inverse(self, y_ND: Tensor, params: Params) -> Tensor:
        return y_ND - params["translation"]


class Diagonal(Operator):
    """Diagonal matrix (``diagonal``): d * x (DistMult, Yang et al. 2015)."""

    def initial(self, dimension: int) -> dict[str, Tensor]:
        return _identity("diagonal", dimension)

    def forward(self, x_ND: Tensor, params: Params) -> Tensor:
        return params["diagonal"] * x_ND

    def backward(self, x_ND: Tensor, params: Params, grad_ND: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        diagonal = params["diagonal"]
        return diagonal * grad_ND, {"diagonal": _reduced(x_ND * grad_ND, diagonal)}

    def inverse(self, y_ND: Tensor, params: Params) -> Tensor:
        diagonal = params["diagonal"]
        return diagonal * y_ND / _damped(diagonal.square())


class ComplexDiagonal(Operator):
    """Complex multiplication (``complex_diagonal``).

    It is that of ComplEx (Trouillon et al. 2016). The first half of x is real, the second imaginary.
    """

    stacked: ClassVar = {"real": "real", "imag": "imag"}
    components: ClassVar = 2

    def initial(self, dimension: int) -> dict[str, Tensor]:
        return _identity("complex_diagonal", dimension)

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

    def inverse(self, y_ND: Tensor, params: Params) -> Tensor:
        a, b = params["real"], params["imag"]
        scale = _damped(a.square() + b.square())
        return self.forward(y_ND, {"real": a / scale, "imag": -b / scale})

    def numbers(self, params: Params) -> list[tuple[str, ...]]:
        del params
        return [("real", "imag")]


class Linear(Operator):
    """Matrix (``linear``): W x, of shape (out, in).

    It is that of RESCAL (Nickel et al. 2011).
    """

    matrices: ClassVar = True

    def initial(self, dimension: int) -> dict[str, Tensor]:
        return _identity("linear", dimension)

    def forward(self, x_ND: Tensor, params: Params) -> Tensor:
        return x_ND @ params["linear_transformation"].T

    def backward(self, x_ND: Tensor, params: Params, grad_ND: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return grad_ND @ params["linear_transformation"], {"linear_transformation": grad_ND.T @ x_ND}

    def inverse(self, y_ND: Tensor, params: Params) -> Tensor:
        matrix = params["linear_transformation"]
        gram = matrix.T @ matrix
        gram.diagonal().copy_(_damped(gram.diagonal()))
        solved_DN: Tensor = torch.linalg.solve(gram, (y_ND @ matrix).T)
        return solved_DN.T


class Affine(Linear):
    """Matrix and translation (``affine``): W x + t."""

    def initial(self, dimension: int) -> dict[str, Tensor]:
        return _identity("affine", dimension)

    def forward(self, x_ND: Tensor, params: Params) -> Tensor:
        return super().forward(x_ND, params) + params["translation"]

    def backward(self, x_ND: Tensor, params: Params, grad_ND: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        grad_x, grads = super().backward(x_ND, params, grad_ND)
        return grad_x, grads | {"translation": grad_ND.sum(0)}

    def inverse(self, y_ND: Tensor, params: Params) -> Tensor:
        return super().inverse(y_ND - params["translation"], params)


OPERATORS: dict[str, Operator] = {
    "none": Identity(),
    "translation": Translation(),
    "diagonal": Diagonal(),
    "complex_diagonal": ComplexDiagonal(),
    "linear": Linear(),
    "affine": Affine(),
}
