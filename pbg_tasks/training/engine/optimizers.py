"""Adagrad by row for embeddings, by element for shared parameters.

They are PBG's RowAdagrad and AsyncAdagrad. Gradients come as rows in any order; those of one row are summed before the
step. Sorting and ``embedding_bag`` sum far faster than ``index_add_`` or sparse tensors do, and always in the same
order. Steps are made block by block, so that the gradients of a block are still in the cache when they are applied.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import embedding_bag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from pbg_tasks.training.data.tables import Table
    from pbg_tasks.training.engine.rounding import Rounding

EPSILON = 1e-10
_BLOCK_NUMBERS = 1 << 18  # 1 MiB of float32


def summed_by_row(rows_M: Tensor, grads_MD: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Sum the gradients of equal rows.

    Args:
        rows_M: int64, row numbers, which may repeat.
        grads_MD: their gradients.

    Yields:
        Blocks of distinct rows (K,), ascending over all blocks, with their summed gradients (K, D).
    """
    ordered_M, order_M = torch.sort(rows_M, stable=True)
    first_M = torch.ones_like(ordered_M, dtype=torch.bool)
    torch.ne(ordered_M[1:], ordered_M[:-1], out=first_M[1:])
    starts = first_M.nonzero().squeeze(1)
    distinct = ordered_M[starts]
    size = max(_BLOCK_NUMBERS // max(grads_MD.shape[1], 1), 1)
    bounds = [*starts[::size].tolist(), len(order_M)]
    for block, (begin, end) in enumerate(pairwise(bounds)):
        edge_chunk = slice(block * size, (block + 1) * size)
        yield distinct[edge_chunk], embedding_bag(order_M[begin:end], grads_MD, starts[edge_chunk] - begin, mode="sum")


def row_adagrad(table: Table, rows_M: Tensor, grads_MD: Tensor, lr: float, rounding: Rounding | None = None) -> None:
    """Step rows of a table in place.

    G += mean(g^2), x -= lr g / (sqrt(G) + 1e-10). Embeddings of bfloat16 need their ``rounding``.
    """
    for rows_K, grads_KD in summed_by_row(rows_M, grads_MD):
        sums_K = table.row_sums.index_select(0, rows_K).add_(grads_KD.square().mean(1))
        table.row_sums.index_copy_(0, rows_K, sums_K)
        rates_K = sums_K.sqrt_().add_(EPSILON).reciprocal_().mul_(-lr)
        found_KD = table.embeddings.index_select(0, rows_K)
        moved_KD = found_KD.to(grads_KD.dtype).addcmul_(grads_KD, rates_K.unsqueeze(1))
        if rounding is not None:
            moved_KD = rounding.rounded(moved_KD, rows_K)
        table.embeddings.index_copy_(0, rows_K, moved_KD)


def adagrad(param: Tensor, sums: Tensor, grad: Tensor, lr: float) -> None:
    """Step a parameter in place, element by element.

    G += g^2, x -= lr g / (sqrt(G) + 1e-10).
    """
    sums.addcmul_(grad, grad)
    param.addcdiv_(grad, sums.sqrt().add_(EPSILON), value=-lr)


def adagrad_rows(param: Tensor, sums: Tensor, rows_M: Tensor, grads: Tensor, lr: float) -> None:
    """Step rows of a stacked parameter in place.

    The gradient of the other rows is 0, which would change nothing.

    Args:
        param: (R, ...).
        sums: (R, ...).
        rows_M: int64, rows of ``param``, which may repeat.
        grads: (M, ...).
        lr: learning rate.
    """
    for rows_K, grads_KP in summed_by_row(rows_M, grads.reshape(len(grads), -1)):
        grad = grads_KP.view(len(rows_K), *param.shape[1:])
        stepped, stepped_sums = param.index_select(0, rows_K), sums.index_select(0, rows_K)
        adagrad(stepped, stepped_sums, grad, lr)
        param.index_copy_(0, rows_K, stepped)
        sums.index_copy_(0, rows_K, stepped_sums)
