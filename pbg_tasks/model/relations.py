"""A relation's operator bound to the parameters of a batch.

In standard mode all rows share one relation's parameters. With dynamic relations every row has its own: they are
gathered row by row, or, where they are matrices, rows are grouped by relation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from pbg_tasks.model.parameters import operator_path
from pbg_tasks.model.registry import operator, parameter_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.model.operators import Operator
    from pbg_tasks.model.parameters import Side


class ParamGrad(NamedTuple):
    """A gradient of a shared parameter.

    Attributes:
        path: the parameter's.
        grad: of the parameter's shape, or (M, ...): of its rows ``rows_M``.
        rows_M: int64, relations, repeated ones allowed; None: all of the parameter.
    """

    path: str
    grad: Tensor
    rows_M: Tensor | None = None


class BoundOperator:
    """An operator whose parameters all rows share.

    Args:
        operator: the formula.
        paths: path of each of its parameters.
        values: the shared parameters by path.
    """

    def __init__(self, operator: Operator, paths: Mapping[str, str], values: Mapping[str, Tensor]) -> None:
        self.operator, self.paths = operator, paths
        self.params = {name: values[path] for name, path in paths.items()}

    def forward(self, x_ND: Tensor) -> Tensor:
        """Apply it: (N, D) to (N, D)."""
        return self.operator.forward(x_ND, self.params)

    def backward(self, x_ND: Tensor, grad_ND: Tensor) -> tuple[Tensor, list[ParamGrad]]:
        """Return the gradients of ``x_ND`` and of the parameters."""
        grad_x, grads = self.operator.backward(x_ND, self.params, grad_ND)
        return grad_x, self.named(grads)

    def counted(self) -> tuple[Mapping[str, Tensor], Tensor | None]:
        """Return what a regularizer penalises: parameters, and how often each row of them counts; None is once."""
        return self.params, None

    def named(self, grads: Mapping[str, Tensor]) -> list[ParamGrad]:
        """Return gradients that have the shapes of ``counted``, by path."""
        return [ParamGrad(self.paths[name], grad) for name, grad in grads.items()]


class RowwiseOperator(BoundOperator):
    """An operator with each row's own parameters, gathered: row n has those of relation ``rel_N[n]``."""

    def __init__(
        self, operator: Operator, paths: Mapping[str, str], values: Mapping[str, Tensor], rel_N: Tensor
    ) -> None:
        super().__init__(operator, paths, values)
        self._rel_N = rel_N
        self.params = {name: value.index_select(0, rel_N) for name, value in self.params.items()}

    def named(self, grads: Mapping[str, Tensor]) -> list[ParamGrad]:
        return [ParamGrad(self.paths[name], grad, self._rel_N) for name, grad in grads.items()]


class GroupedOperator(BoundOperator):
    """An operator with matrices: one call for all rows of a relation, instead of a copy of the matrix for each row."""

    def __init__(
        self, operator: Operator, paths: Mapping[str, str], values: Mapping[str, Tensor], rel_N: Tensor
    ) -> None:
        super().__init__(operator, paths, values)
        self._order = torch.argsort(rel_N, stable=True)
        self._present, self._counts = torch.unique_consecutive(rel_N[self._order], return_counts=True)
        self._rows = torch.split_with_sizes(self._order, self._counts.tolist())

    def _groups(self) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        for relation, rows in zip(self._present.tolist(), self._rows, strict=True):
            yield rows, {name: value[relation] for name, value in self.params.items()}

    def forward(self, x_ND: Tensor) -> Tensor:
        out_ND = torch.empty_like(x_ND)
        for rows, params in self._groups():
            out_ND[rows] = self.operator.forward(x_ND[rows], params)
        return out_ND

    def backward(self, x_ND: Tensor, grad_ND: Tensor) -> tuple[Tensor, list[ParamGrad]]:
        grad_x = torch.empty_like(x_ND)
        collected: dict[str, list[Tensor]] = {name: [] for name in self.paths}
        for rows, params in self._groups():
            grad_x[rows], grads = self.operator.backward(x_ND[rows], params, grad_ND[rows])
            for name, grad in grads.items():
                collected[name].append(grad)
        return grad_x, self.named({name: torch.stack(grads) for name, grads in collected.items()})

    def counted(self) -> tuple[Mapping[str, Tensor], Tensor | None]:
        return {name: value.index_select(0, self._present) for name, value in self.params.items()}, self._counts

    def named(self, grads: Mapping[str, Tensor]) -> list[ParamGrad]:
        return [ParamGrad(self.paths[name], grad, self._present) for name, grad in grads.items()]


def bind(
    config: ModelConfig, values: Mapping[str, Tensor], side: Side, family: int, row_N: Tensor | None
) -> BoundOperator:
    """Return the operator of one side for rows of a family's relations.

    Args:
        config: the model.
        values: shared parameters by path.
        side: whose operators; standard mode only has those of the right-hand side.
        family: index of the family's first relation.
        row_N: int64, each row's place in the stacked parameters; None without dynamic relations: all have the same.
    """
    relation = config.relations[family]
    applied = operator(relation.operator)
    names = parameter_names(relation.operator, config.entity_dimension(relation.lhs))
    if row_N is None:
        return BoundOperator(applied, {name: operator_path(family, side, name) for name in names}, values)
    paths = {name: operator_path(family, side, applied.stacked_name(name)) for name in names}
    kind = GroupedOperator if applied.matrices else RowwiseOperator
    return kind(applied, paths, values, row_N)
