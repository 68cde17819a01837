"""One training step: scores of a batch's edges and their negatives, the loss, and every gradient, without autograd.

An edge is scored twice, once for each side that is corrupted. The end on the other side is the *query*; the end on the
corrupted side and its negatives are *candidates*. With dynamic relations the operator works on the query (each direction
has its own); in standard mode it works on the right-hand side, query or candidate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from pbg_tasks.model.losses import LOSSES
from pbg_tasks.model.negatives import chunk_plan, mask_own, mask_true
from pbg_tasks.model.operators import OPERATORS
from pbg_tasks.model.parameters import global_path
from pbg_tasks.model.relations import ParamGrad, bind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.model.comparators import Comparator
    from pbg_tasks.model.negatives import NegativeSampler
    from pbg_tasks.model.parameters import SideName
    from pbg_tasks.model.relations import BoundOperator
    from pbg_tasks.train.batching import Batch
    from pbg_tasks.train.tables import Table
    from pbg_tasks.train.workspace import Workspace

SIDES: tuple[SideName, SideName] = ("lhs", "rhs")


class Observer(Protocol):
    """Looks at the scores of a step."""

    def __call__(self, side: SideName, positive_B: Tensor, negative_BK: Tensor) -> None:
        """See one corrupted side's scores; masked ones are -1e9. The memory is used again afterwards."""


class Figures(NamedTuple):
    """What a step showed, summed over its edges.

    Attributes:
        loss: scalar, both sides.
        reg: scalar, of the regularizer.
        violators_lhs: scalar, negatives on the left that score above their edge.
        violators_rhs: same on the right.
    """

    loss: Tensor
    reg: Tensor
    violators_lhs: Tensor
    violators_rhs: Tensor


class Gathered:
    """Gradients of one table's rows, in one buffer.

    Args:
        table: whose rows.
        rows_M: int64, every row that will have a gradient, repeated ones allowed.
        workspace: has the buffer.
        name: of the buffer.
    """

    def __init__(self, table: Table, pieces: list[Tensor], workspace: Workspace, name: str) -> None:
        self.table = table
        self.rows_M = torch.cat(pieces)
        shape = (len(self.rows_M), table.embeddings.shape[1])
        self.grads_MD = workspace.take(name, shape, table.embeddings)
        self.views = self.grads_MD.split([len(piece) for piece in pieces])


@dataclass(slots=True)
class Rows:
    """Rows of a table on their way to the comparator, and what is needed for the way back.

    Attributes:
        raw_ND: as looked up, global embedding added.
        operator: what is applied to them, if anything.
        comparator: what they are prepared for.
    """

    raw_ND: Tensor
    operator: BoundOperator | None
    comparator: Comparator
    applied_ND: Tensor = field(init=False)
    ready_ND: Tensor = field(init=False)
    grad_ND: Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.applied_ND = self.raw_ND if self.operator is None else self.operator.forward(self.raw_ND)
        self.ready_ND = self.comparator.prepare(self.applied_ND)

    def add(self, grad_ND: Tensor) -> None:
        """Add to the gradient at the comparator."""
        self.grad_ND = grad_ND if self.grad_ND is None else self.grad_ND + grad_ND

    def back(self) -> tuple[Tensor, list[ParamGrad]]:
        """Return the gradients of ``raw_ND`` and of the operator's parameters."""
        if self.grad_ND is None:
            return torch.zeros_like(self.raw_ND), []
        grad = self.comparator.prepare_backward(self.applied_ND, self.grad_ND)
        return (grad, []) if self.operator is None else self.operator.backward(self.raw_ND, grad)


@dataclass(frozen=True, slots=True)
class Model:
    """What a step needs of the model."""

    config: ModelConfig
    values: Mapping[str, Tensor]
    comparator: Comparator


class Step:
    """The forward and backward pass of one batch. Nothing is changed but rows that ``max_norm`` shrinks.

    Args:
        model: config, shared parameters and comparator.
        batch: the edges; of one relation in standard mode.
        tables: of both sides' entities; the same object twice where both are the same partition.
        sampler: draws negatives.
        workspace: large buffers.
        observe: shown the scores.

    Attributes:
        figures: what it showed.
        gathered: gradients of embeddings, for each table.
        param_grads: gradients of shared parameters; several may be for one parameter.
    """

    def __init__(
        self,
        model: Model,
        batch: Batch,
        tables: Mapping[SideName, Table],
        sampler: NegativeSampler,
        workspace: Workspace,
        observe: Observer | None = None,
    ) -> None:
        self._config, self._values, self._comparator = model.config, model.values, model.comparator
        self._batch, self._tables, self._workspace, self._observe = batch, tables, workspace, observe
        self._relation = self._config.relations[batch.rel if isinstance(batch.rel, int) else 0]
        self._plan = chunk_plan(self._config, self._relation, len(batch))
        self._ends: dict[SideName, Tensor] = {"lhs": batch.lhs, "rhs": batch.rhs}
        self._drawn = self._draw(sampler)
        if self._config.max_norm is not None:
            self._renorm(self._config.max_norm)
        self.gathered, self._grads = self._reserve()
        self.param_grads: list[ParamGrad] = []
        self.figures = self._run()

    # -- entities

    def _draw(self, sampler: NegativeSampler) -> dict[SideName, Tensor]:
        """Draw candidates, left first, as PBG does; a side without any has none."""
        disabled = {"lhs": self._config.disable_lhs_negs, "rhs": self._config.disable_rhs_negs}
        drawn: dict[SideName, Tensor] = {}
        for side in SIDES:
            if disabled[side]:
                continue
            entities = len(self._tables[side])
            if self._plan.kind == "all":
                drawn[side] = torch.arange(entities)
            elif self._plan.uniform:
                drawn[side] = sampler.draw(self._plan.chunks, self._plan.uniform, entities).view(-1)
        return drawn

    def _renorm(self, max_norm: float) -> None:
        """Shrink the rows that are looked up to ``max_norm``, in place, as PBG's lookup does."""
        for side in SIDES:
            for rows in (self._ends[side], self._drawn.get(side)):
                if rows is not None:
                    torch.embedding_renorm_(self._tables[side].embeddings, rows, max_norm, 2.0)

    def _reserve(self) -> tuple[list[Gathered], dict[str, Tensor]]:
        """Give every looked-up row a place for its gradient: by side for the ends, by ``drawn_`` side for the others."""
        pieces = {side: {side: self._ends[side]} for side in SIDES}
        for side, rows in self._drawn.items():
            pieces[side][f"drawn_{side}"] = rows
        same = self._tables["lhs"] is self._tables["rhs"]
        groups = {"lhs": pieces["lhs"] | pieces["rhs"]} if same else pieces
        gathered, places = [], {}
        for side, named in groups.items():
            gathered.append(Gathered(self._tables[side], list(named.values()), self._workspace, f"gradients_{side}"))
            places.update(zip(named, gathered[-1].views, strict=True))
        return gathered, places

    def _look_up(self, side: SideName, rows_N: Tensor, buffer: str) -> Tensor:
        table = self._tables[side].embeddings
        found = self._workspace.take(buffer, (len(rows_N), table.shape[1]), table)
        torch.index_select(table, 0, rows_N, out=found)
        if self._config.global_emb:
            found += self._values[global_path(getattr(self._relation, side))]
        return found

    # -- the step

    def _run(self) -> Figures:
        pairs = self._pairs()
        figures = {side: self._corrupt(side, query, own) for side, (query, own) in pairs.items()}
        ends = {id(rows): (side, rows) for side, pair in pairs.items() for rows, side in zip(pair, (_other(side), side), strict=True)}
        reg = self._regularize([rows for _, rows in ends.values()])
        self._send_back(list(ends.values()))
        (loss_lhs, violators_lhs), (loss_rhs, violators_rhs) = figures["lhs"], figures["rhs"]
        return Figures(loss_lhs + loss_rhs, reg, violators_lhs, violators_rhs)
