"""Embeddings between a table and the comparator, and their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from pbg_tasks.model.comparators import Comparator
    from pbg_tasks.model.parameters import Side
    from pbg_tasks.model.relations import BoundOperator, ParamGrad
    from pbg_tasks.training.data.tables import Table
    from pbg_tasks.training.engine.workspace import Workspace


class Rows:
    """Looked-up embeddings as they are compared.

    Args:
        side: side of the edges whose ends they are.
        raw_ND: as looked up, with the global embedding added.
        bound: the operator that is applied to them, if any.
        comparator: the comparator that prepares them.

    Attributes:
        ready_ND: after operator and preparation.
        grad_ND: gradient of ``ready_ND``, as far as it is collected.
    """

    def __init__(self, side: Side, raw_ND: Tensor, bound: BoundOperator | None, comparator: Comparator) -> None:
        self.side, self.bound = side, bound
        self.comparator, self._raw_ND = comparator, raw_ND
        self._applied_ND = raw_ND if bound is None else bound.forward(raw_ND)
        self.ready_ND = comparator.prepare(self._applied_ND)
        self.grad_ND: Tensor | None = None

    def add(self, grad_ND: Tensor) -> None:
        """Add to the gradient of ``ready_ND``.

        The first summand is kept without a copy and changed by later ones.
        """
        self.grad_ND = grad_ND if self.grad_ND is None else self.grad_ND.add_(grad_ND)

    def back(self) -> tuple[Tensor, list[ParamGrad]]:
        """Return the gradients of the looked-up embeddings and of the operator's parameters."""
        if self.grad_ND is None:
            return torch.zeros_like(self._raw_ND), []
        grad = self.comparator.prepare_backward(self._applied_ND, self.ready_ND, self.grad_ND)
        return (grad, []) if self.bound is None else self.bound.backward(self._raw_ND, grad)


class RowGradients:
    """Gradients of one table's rows, in one buffer.

    Args:
        table: the table.
        edge_chunks: row numbers, which may repeat.
        workspace: owner of the buffer.
        name: name of the buffer.

    Attributes:
        table: the argument.
        rows_M: int64, all edge chunks together.
        grads_MD: their gradients, which the caller writes.
        places: slices of ``grads_MD``, one for each edge chunk.
    """

    def __init__(self, table: Table, edge_chunks: list[Tensor], workspace: Workspace, name: str) -> None:
        self.table, self.rows_M = table, torch.cat(edge_chunks)
        self.grads_MD = workspace.take(name, (len(self.rows_M), table.embeddings.shape[1]), table.row_sums)
        self.places = list(torch.split_with_sizes(self.grads_MD, [len(edge_chunk) for edge_chunk in edge_chunks]))
