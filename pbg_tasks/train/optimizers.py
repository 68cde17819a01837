"""Adagrad, by row for embeddings and by element for shared parameters (PBG's RowAdagrad and AsyncAdagrad)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from pbg_tasks.train.tables import Table

EPSILON = 1e-10


def coalesce(rows_M: Tensor, grads_MD: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the gradients of equal rows.

    Sorting and ``embedding_bag`` beat ``index_add_`` and sparse tensors by far, and add in a fixed order.

    Args:
        rows_M: int64 (M,), row numbers, repeated ones allowed.
        grads_MD: (M, D).

    Returns:
        The distinct rows (K,), ascending, and their summed gradients (K, D).
    """
    ordered, order = torch.sort(rows_M, stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=first[1:])
    offsets = first.nonzero().squeeze(1)
    sums = torch.nn.functional.embedding_bag(order, grads_MD, offsets, mode="sum")
    return ordered[offsets], sums


def row_adagrad(table: Table, rows_K: Tensor, grads_KD: Tensor, lr: float) -> None:
    """Step distinct rows in place: G += mean(g^2), x -= lr g / (sqrt(G) + 1e-10)."""
    sums_K = table.row_sums.index_select(0, rows_K).add_(grads_KD.square().mean(1))
    table.row_sums.index_copy_(0, rows_K, sums_K)
    step_KD = grads_KD * (-lr / sums_K.sqrt().add_(EPSILON)).unsqueeze(1)
    table.embeddings.index_copy_(0, rows_K, table.embeddings.index_select(0, rows_K).add_(step_KD))


def adagrad(param: Tensor, sums: Tensor, grad: Tensor, lr: float) -> None:
    """Step a parameter in place: G += g^2, x -= lr g / (sqrt(G) + 1e-10), element by element."""
    sums.addcmul_(grad, grad)
    param.addcdiv_(grad, sums.sqrt().add_(EPSILON), value=-lr)


def adagrad_rows(param: Tensor, sums: Tensor, rows_K: Tensor, grad: Tensor, lr: float) -> None:
    """Step distinct rows of a stacked parameter in place; the others' gradient is 0, which changes nothing."""
    row_sums = sums.index_select(0, rows_K).addcmul_(grad, grad)
    sums.index_copy_(0, rows_K, row_sums)
    rows = param.index_select(0, rows_K).addcdiv_(grad, row_sums.sqrt().add_(EPSILON), value=-lr)
    param.index_copy_(0, rows_K, rows)
