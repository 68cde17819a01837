"""Adagrad of ``engine.optimizers`` with shapes that do not depend on numbers.

On a device, a shape that depends on numbers would make the host wait for them. Equal rows are found by position: after
sorting, the first of a run of equal rows gets the sum of the run and all others get zero, which changes nothing.
``embedding_bag`` sums each run in the same order every time. Of the numbers that are then added to one row all but one
are zero, so the result is the same every time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import embedding_bag

from pbg_tasks.training.engine.optimizers import EPSILON

if TYPE_CHECKING:
    from torch import Tensor

    from pbg_tasks.training.data.tables import Table


def summed_by_run(rows_M: Tensor, grads_MD: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the gradients of equal rows.

    Args:
        rows_M: int64, row numbers, which may repeat.
        grads_MD: their gradients.

    Returns:
        The row numbers in ascending order, (M,), and gradients (M, D): the sum at the first of equal rows, zero at the
        others.
    """
    ordered_M, order_M = torch.sort(rows_M, stable=True)
    position_M = torch.arange(len(rows_M), device=rows_M.device)
    begins_M = torch.ones_like(ordered_M, dtype=torch.bool)
    torch.ne(ordered_M[1:], ordered_M[:-1], out=begins_M[1:])
    # A bag ends at the offset of the next. Where no run begins, the bag is empty: it has the offset of the next run.
    offsets_M = torch.where(begins_M, position_M, len(rows_M)).flip(0).cummin(0).values.flip(0)
    return ordered_M, embedding_bag(order_M, grads_MD, offsets_M, mode="sum")


def row_adagrad(table: Table, rows_M: Tensor, grads_MD: Tensor, lr: Tensor) -> None:
    """Step rows of a table in place.

    G += mean(g^2), x -= lr g / (sqrt(G) + 1e-10). The tensor ``lr`` is a scalar.
    """
    ordered_M, summed_MD = summed_by_run(rows_M, grads_MD)
    table.row_sums.index_add_(0, ordered_M, summed_MD.square().mean(1))
    rates_M = lr / table.row_sums.index_select(0, ordered_M).sqrt_().add_(EPSILON)
    table.embeddings.index_add_(0, ordered_M, summed_MD.mul_(rates_M.neg_().unsqueeze(1)))


def adagrad(param: Tensor, sums: Tensor, grad: Tensor, lr: Tensor) -> None:
    """Step a parameter in place, element by element.

    G += g^2, x -= lr g / (sqrt(G) + 1e-10).
    """
    sums.addcmul_(grad, grad)
    param.sub_(lr * grad / sums.sqrt().add_(EPSILON))


def adagrad_rows(param: Tensor, sums: Tensor, rows_M: Tensor, grads: Tensor, lr: Tensor) -> None:
    """Step rows of a stacked parameter in place.

    Args:
        param: (R, ...), contiguous.
        sums: (R, ...), contiguous.
        rows_M: int64, rows of ``param``, which may repeat.
        grads: (M, ...).
        lr: learning rate, a scalar.
    """
    ordered_M, summed_MP = summed_by_run(rows_M, grads.reshape(len(grads), -1))
    param_RP, sums_RP = param.view(len(param), -1), sums.view(len(sums), -1)
    sums_RP.index_add_(0, ordered_M, summed_MP.square())
    roots_MP = sums_RP.index_select(0, ordered_M).sqrt_().add_(EPSILON)
    param_RP.index_add_(0, ordered_M, summed_MP.mul_(-lr).div_(roots_MP))
