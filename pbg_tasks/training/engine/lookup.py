"""Lookup of the ends of a batch in a table.

N embeddings are made of M rows: an end is one row, or the mean of several rows (featurized entities). The table stays
as it is: where there is a ``max_norm``, the embeddings are made of shrunk rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import embedding_bag

from pbg_tasks.training.engine.rounding import truncated

if TYPE_CHECKING:
    from torch import Tensor


def shrink_rows(table: Tensor, rows_M: Tensor, max_norm: float) -> None:
    """Shrink rows of a table to ``max_norm``, in place.

    PBG's lookup does so, too. Rows may repeat.
    """
    if table.dtype == torch.bfloat16:
        shrink_narrow_rows(table, rows_M, max_norm)
    elif table.device.type == "cpu":
        torch.embedding_renorm_(table, rows_M, max_norm, 2.0)
    else:
        shrink_rows_unseen(table, rows_M, max_norm)


def shrink_rows_unseen(table: Tensor, rows_M: Tensor, max_norm: float) -> None:
    """Shrink rows as ``shrink_rows`` does, without making the host wait.

    ``embedding_renorm_`` would first read which rows repeat.
    """
    found_MD = table.index_select(0, rows_M)
    norm_M1 = found_MD.norm(dim=1, keepdim=True)
    found_MD.mul_(torch.where(norm_M1 > max_norm, max_norm / (norm_M1 + 1e-7), 1.0))
    table.index_copy_(0, rows_M, found_MD)  # equal rows are written with equal numbers


def shrink_narrow_rows(table: Tensor, rows_M: Tensor, max_norm: float) -> None:
    """Shrink rows of bfloat16, rounding toward 0."""
    found_MD = table.index_select(0, rows_M).float()
    norm_M1 = found_MD.norm(dim=1, keepdim=True)
    found_MD.mul_(torch.where(norm_M1 > max_norm, max_norm / (norm_M1 + 1e-7), 1.0))
    table.index_copy_(0, rows_M, truncated(found_MD))  # equal rows are written with equal numbers


class Single:
    """Lookup of one row for each end."""

    def __init__(self, rows_N: Tensor) -> None:
        self.rows_M = rows_N

    def __len__(self) -> int:
        return len(self.rows_M)

    def gather(self, table: Tensor, out_ND: Tensor, *, max_norm: float | None = None) -> None:
        """Write the embeddings."""
        if table.dtype == out_ND.dtype:
            torch.index_select(table, 0, self.rows_M, out=out_ND)
        else:
            out_ND.copy_(table.index_select(0, self.rows_M))
        if max_norm is not None:
            out_ND.copy_(torch.renorm(out_ND, 2, 0, max_norm))

    def spread(self, grad_ND: Tensor, out_MD: Tensor) -> None:
        """Copy the gradient; both may be the same memory."""
        if grad_ND is not out_MD:
            out_MD.copy_(grad_ND)


class Bags:
    """Lookup of the mean of an entity's features (PBG's FeaturizedEmbedding).

    An entity without features is zero.

    Args:
        offsets: int64 (N + 1,); embedding n is made of the rows from ``offsets[n]`` to ``offsets[n + 1]``.
        rows_M: int64.
    """

    def __init__(self, offsets: Tensor, rows_M: Tensor) -> None:
        self._offsets, self.rows_M = offsets, rows_M

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def gather(self, table: Tensor, out_ND: Tensor, *, max_norm: float | None = None) -> None:
        """Write the means."""
        rows_M = self.rows_M
        if max_norm is not None or table.dtype != out_ND.dtype:
            table, rows_M = table[rows_M].to(out_ND.dtype), torch.arange(len(rows_M), device=rows_M.device)
        if max_norm is not None:
            table = torch.renorm(table, 2, 0, max_norm)
        out_ND.copy_(embedding_bag(rows_M, table, self._offsets, mode="mean", include_last_offset=True))

    def spread(self, grad_ND: Tensor, out_MD: Tensor) -> None:
        """Write each feature's share of its entity's gradient."""
        counts_N = self._offsets.diff()
        shares_ND = grad_ND / counts_N.clamp_min(1).unsqueeze(1)
        owner_M = torch.repeat_interleave(counts_N, output_size=len(self.rows_M))
        torch.index_select(shares_ND, 0, owner_M, out=out_MD)


Lookup = Single | Bags
