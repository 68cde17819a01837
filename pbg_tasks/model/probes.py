"""Trials of parts that come from other packages, on a few numbers.

The parts are operators, comparators, losses and regularizers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from pbg_tasks.model.negatives import MASKED
from pbg_tasks.plugins import PluginError

if TYPE_CHECKING:
    from torch import Tensor

    from pbg_tasks.model.comparators import Comparator
    from pbg_tasks.model.losses import Loss
    from pbg_tasks.model.operators import Operator
    from pbg_tasks.model.regularizers import Regularizer

_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # the name becomes part of an HDF5 path
_LEGACY = {"rotation", "rotations"}  # in PBG's format before its 1.0, these are the matrices of affine
_DIMENSION = 24  # dimension of trial embeddings; it can be split in halves, thirds, quarters and eighths


def check_operator(operator: Operator, dimension: int) -> None:
    """Try an operator on embeddings of ``dimension``.

    It is tried with shared parameters and with row-wise ones.

    Raises:
        PluginError: the operator has a fault, which the message describes.
    """
    if dimension % operator.components:
        raise PluginError(f"needs a dimension that is a multiple of {operator.components}, got {dimension}")
    initial = operator.initial(dimension)
    _check_parameters(operator, initial)
    rows = 3 if dimension != 3 else 2  # noqa: PLR2004 - rows must not be mistaken for dimensions
    x_ND = torch.linspace(-1, 1, rows * dimension).view(rows, dimension)
    params = {name: value + torch.linspace(0, 0.1, value.numel()).view_as(value) for name, value in initial.items()}
    shared_ND = operator.forward(x_ND, params)
    _check_shape("forward", shared_ND, x_ND)
    operator.backward(x_ND, params, torch.ones_like(x_ND))
    for names in operator.numbers(params):
        if len({params[name].shape for name in names}) > 1:
            raise PluginError(f"says that {', '.join(names)} are parts of the same numbers, but their shapes differ")
    if operator.matrices:
        return
    stacked = {name: value.expand(rows, *value.shape) for name, value in params.items()}
    try:
        rowwise_ND = operator.forward(x_ND, stacked)
        same = rowwise_ND.shape == shared_ND.shape and torch.allclose(rowwise_ND, shared_ND, atol=1e-5, equal_nan=True)
    except (RuntimeError, IndexError):
        same = False
    if not same:
        raise PluginError(
            "does not take parameters row by row (a leading axis N, as embeddings have it): "
            "write forward so that it does, or set matrices = True to have rows grouped by relation"
        )


def _check_parameters(operator: Operator, initial: dict[str, Tensor]) -> None:
    stacked = [operator.stacked_name(name) for name in initial]
    if len(set(stacked)) < len(stacked):
        raise PluginError(f"gives two stacked parameters the same name ({', '.join(stacked)}): set stacked")
    for name in (*initial, *stacked):
        if not _PARAMETER.fullmatch(name) or name in _LEGACY:
            raise PluginError(f"has a parameter with the name {name!r}: model files cannot hold it, choose another")
    for name, value in initial.items():
        if value.dtype != torch.float32 or value.dim() == 0:
            shape, dtype = tuple(value.shape), value.dtype
            raise PluginError(f"starts {name} as {dtype} of shape {shape}: float32 with at least one axis is needed")


def check_comparator(comparator: Comparator) -> None:
    """Try a comparator.

    Raises:
        PluginError: the comparator has a fault, which the message describes.
    """
    query_CSD = torch.linspace(-1, 1, 2 * 3 * _DIMENSION).view(2, 3, _DIMENSION)
    candidate_CKD = torch.linspace(1, -0.5, 2 * 5 * _DIMENSION).view(2, 5, _DIMENSION)
    ready_CSD, ready_CKD = comparator.prepare(query_CSD), comparator.prepare(candidate_CKD)
    _check_shape("prepare", ready_CSD, query_CSD)
    score_CSK = comparator.all_pairs(ready_CSD, ready_CKD)
    _check_shape("all_pairs", score_CSK, torch.empty(2, 3, 5))
    grad_CSD = comparator.all_pairs_backward(
        ready_CSD, ready_CKD, score_CSK, torch.ones_like(score_CSK), torch.empty_like(ready_CKD)
    )
    comparator.prepare_backward(query_CSD, ready_CSD, grad_CSD)
    _check_shape("pairs", comparator.pairs(ready_CSD[0], ready_CKD[0, :3]), torch.empty(3))


def check_loss(loss: Loss) -> None:
    """Try a loss, also without negatives.

    Raises:
        PluginError: the loss has a fault, which the message describes.
    """
    positive_B = torch.tensor([0.5, -1.0, 2.0])
    negative_BK = torch.tensor([[0.1, MASKED], [MASKED, MASKED], [2.5, -0.5]])
    for negatives in (negative_BK, negative_BK[:, :0]):
        _check_shape("forward", loss.forward(positive_B.clone(), negatives.clone(), 0.1), positive_B)
        found = loss(positive_B.clone(), negatives.clone(), None, 0.1)
        if not all(part.isfinite().all() for part in found):
            raise PluginError(f"gives numbers that are not finite; a masked negative has the score {MASKED:g}")


def check_regularizer(regularizer: Regularizer) -> None:
    """Try a regularizer.

    Raises:
        PluginError: the regularizer has a fault, which the message describes.
    """
    modulus = torch.tensor([[0.0, 0.5], [1.0, 2.0]])
    penalty = regularizer.forward(modulus.clone())
    _check_shape("forward", penalty, modulus)
    if not (penalty.isfinite().all() and regularizer.slope(modulus.clone()).isfinite().all()):
        raise PluginError("gives penalties or gradients that are not finite for a modulus of 0, 0.5, 1 or 2")


def _check_shape(function: str, found: object, like: Tensor) -> None:
    shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
    if shape != tuple(like.shape):
        raise PluginError(f"is wrong: {function} gives {shape} where a tensor of shape {tuple(like.shape)} is needed")
