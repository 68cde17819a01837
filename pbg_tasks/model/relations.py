"""Relation operators, bound to the parameters of a batch.

In standard mode all rows share one relation's parameters. With dynamic relations every row has its own, and so it is
with a reciprocal one, whose rows all have the same: they are gathered row by row, or, where they are matrices, rows are
grouped by relation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from pbg_tasks.model.parameters import operator_path
from pbg_tasks.model.registry import operator, parameter_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.model.operators import Operator
    from pbg_tasks.model.parameters import Side


class ParamGrad(NamedTuple):
    """Gradient of a shared parameter.

    Attributes:
        path: of the parameter.
        grad: of the parameter's shape, or (M, ...): of its rows ``rows_M``.
        rows_M: int64, relations, repeated ones allowed; None: all of the parameter.
    """

    path: str
    grad: Tensor
    rows_M: Tensor | None = None


class BoundOperator:
    """Operator whose parameters all rows share.

    Args:
        operator: the formula.
        paths: path of each of its parameters.
        values: the shared parameters by path.
    """

    def __init__(self, operator: Operator, paths: Mapping[str, str], values: Mapping[str, Tensor]) -> None:
        self.operator, self.paths = operator, paths
        self.params = {name: values[path] for name, path in paths.items()}

    def forward(self, x_ND: Tensor) -> Tensor:
        """Apply the operator: (N, D) to (N, D)."""
        return self.operator.forward(x_ND, self.params)

    def backward(self, x_ND: Tensor, grad_ND: Tensor) -> tuple[Tensor, list[ParamGrad]]:
        """Return the gradients of ``x_ND`` and of the parameters."""
        grad_x, grads = self.operator.backward(x_ND, self.params, grad_ND)
        return grad_x, self.named(grads)

    def counted(self) -> tuple[Mapping[str, Tensor], Tensor | None]:
        """Return the parameters that a regularizer penalises, and their counts.

        A count is how often a row of the parameters counts; None means once.
        """
        return self.params, None

    def named(self, grads: Mapping[str, Tensor]) -> list[ParamGrad]:
        """Return gradients that have the shapes of ``counted``, by path."""
        return [ParamGrad(self.paths[name], grad) for name, grad in grads.items()]


class RowwiseOperator(BoundOperator):
    """Operator with each row's own parameters, gathered.

    Row n has those of relation ``rel_N[n]``.
    """

    def __init__(
        self, operator: Operator, paths: Mapping[str, str], values: Mapping[str, Tensor], rel_N: Tensor
    ) -> None:
        super().__init__(operator, paths, values)
        self._rel_N = rel_N
        self.params = {name: value.index_select(0, rel_N) for name, value in self.params.items()}

    def named(self, grads: Mapping[str, Tensor]) -> list[ParamGrad]:
        return [ParamGrad(self.paths[name], grad, self._rel_N) for name, grad in grads.items()]


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows grouped by relation.

    Relations and sizes are also kept in the host's memory, so that it need not wait for the device that computes.

    Attributes:
        order_N: int64, the rows, sorted by relation.
        present_M: int64, the relations of the rows, ascending.
        counts_M: int64, number of rows of each.
        relations: as ``present_M``.
        sizes: as ``counts_M``.
    """

    order_N: Tensor
    present_M: Tensor
    counts_M: Tensor
    relations: list[int]
    sizes: list[int]

    @classmethod
    def of(cls, rel_N: Tensor) -> Groups:
        """Group rows by their relations."""
        order_N = torch.argsort(rel_N, stable=True)
        present_M, counts_M = torch.unique_consecutive(rel_N[order_N], return_counts=True)
        return cls(order_N, present_M, counts_M, present_M.tolist(), counts_M.tolist())

    def moved(self, put: Callable[[Tensor], Tensor]) -> Groups:
        """Return a copy with tensors on another device."""
        return Groups(put(self.order_N), put(self.present_M), put(self.counts_M), self.relations, self.sizes)


class GroupedOperator(BoundOperator):
    """Operator with matrices, called once for all rows of a relation.

    This avoids a copy of the matrix for each row.
    """

    def __init__(
        self,
        operator: Operator,
        paths: Mapping[str, str],
        values: Mapping[str, Tensor],
        rel_N: Tensor,
        groups: Groups | None = None,
    ) -> None:
        super().__init__(operator, paths, values)
        groups = Groups.of(rel_N) if groups is None else groups
        self._present, self._counts = groups.present_M, groups.counts_M
        self._relations = groups.relations
        self._rows = torch.split_with_sizes(groups.order_N, groups.sizes)

    def _groups(self) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        for relation, rows in zip(self._relations, self._rows, strict=True):
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
    config: ModelConfig,
    values: Mapping[str, Tensor],
    side: Side,
    family: int,
    row_N: Tensor | None,
    groups: Groups | None = None,
) -> BoundOperator:
    """Return the operator of one side for rows of a family's relations.

    Args:
        config: the model.
        values: shared parameters by path.
        side: of the operators; standard mode only has those of the right-hand side.
        family: index of the family's first relation.
        row_N: int64, row of each in the stacked parameters; None with one operator for both questions, where all rows
            have the same.
        groups: of ``row_N``, if they are known; operators with matrices need them.
    """
    relation = config.relations[family]
    applied = operator(relation.operator)
    names = parameter_names(relation.operator, config.entity_dimension(relation.lhs))
    if row_N is None:
        return BoundOperator(applied, {name: operator_path(family, side, name) for name in names}, values)
    paths = {name: operator_path(family, side, applied.stacked_name(name)) for name in names}
    if applied.matrices:
        return GroupedOperator(applied, paths, values, row_N, groups)
    return RowwiseOperator(applied, paths, values, row_N)
