"""One training step: scores of a batch's edges and their negatives, the loss, and every gradient, without autograd.

An edge is scored twice, once for each side that is corrupted. The end on the other side is the *query*; the end on the
corrupted side and its negatives are *candidates*. With dynamic relations the operator works on the query (each
direction has its own); in standard mode it works on the right-hand side, query or candidate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from pbg_tasks.model.losses import LOSSES
from pbg_tasks.model.negatives import chunk_plan
from pbg_tasks.model.operators import OPERATORS
from pbg_tasks.model.parameters import OTHER_SIDE, SIDES, global_path
from pbg_tasks.model.regularizers import n3, n3_parameters
from pbg_tasks.model.relations import ParamGrad, bind
from pbg_tasks.train.contrast import Contrast
from pbg_tasks.train.rows import RowGradients, Rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.model.comparators import Comparator
    from pbg_tasks.model.negatives import NegativeSampler
    from pbg_tasks.model.parameters import Side
    from pbg_tasks.train.batching import Batch
    from pbg_tasks.train.tables import Table
    from pbg_tasks.train.workspace import Workspace


class Observer(Protocol):
    """Looks at the scores of a step."""

    def __call__(self, side: Side, positive_B: Tensor, negative_BK: Tensor) -> None:
        """See one corrupted side's scores; masked ones are -1e9. The memory is used again afterwards."""


class Figures(NamedTuple):
    """What a step showed, summed over its edges; scalars.

    Attributes:
        loss: of both sides.
        reg: of the regularizer.
        violators_lhs: negatives on the left that score above their edge.
        violators_rhs: same on the right.
    """

    loss: Tensor
    reg: Tensor
    violators_lhs: Tensor
    violators_rhs: Tensor


@dataclass(frozen=True, slots=True)
class Model:
    """What a step needs of the model.

    Attributes:
        config: the model.
        values: shared parameters by path.
        comparator: of the config.
    """

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
        row_grads: gradients of embeddings, for each table.
        param_grads: gradients of shared parameters; several may be of one parameter.
    """

    def __init__(
        self,
        model: Model,
        batch: Batch,
        tables: Mapping[Side, Table],
        sampler: NegativeSampler,
        workspace: Workspace,
        observe: Observer | None = None,
    ) -> None:
        self._model, self._config, self._batch, self._tables = model, model.config, batch, tables
        self._workspace, self._observe = workspace, observe
        self._relation = self._config.relations[batch.rel if isinstance(batch.rel, int) else 0]
        self._plan = chunk_plan(self._config, self._relation, len(batch))
        self._ends: dict[Side, Tensor] = {"lhs": batch.lhs, "rhs": batch.rhs}
        self._drawn = self._draw(sampler)
        if self._config.max_norm is not None:
            self._renorm(self._config.max_norm)
        self.row_grads, self._end_grads, self._drawn_grads = self._reserve()
        self.param_grads: list[ParamGrad] = []
        self.figures = self._run()

    def _draw(self, sampler: NegativeSampler) -> dict[Side, Tensor]:
        """Draw candidates, left first, as PBG does; a side may have none."""
        disabled = {"lhs": self._config.disable_lhs_negs, "rhs": self._config.disable_rhs_negs}
        drawn: dict[Side, Tensor] = {}
        for side in SIDES:
            entities = len(self._tables[side])
            if disabled[side]:
                continue
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

    def _reserve(self) -> tuple[list[RowGradients], dict[Side, Tensor], dict[Side, Tensor]]:
        """Give every looked-up row a place for its gradient; return them by table, and the places by side."""
        own = {side: [rows for rows in (self._ends[side], self._drawn.get(side)) if rows is not None] for side in SIDES}
        if self._tables["lhs"] is self._tables["rhs"]:
            row_grads = [RowGradients(self._tables["lhs"], own["lhs"] + own["rhs"], self._workspace, "gradients")]
        else:
            row_grads = [RowGradients(self._tables[s], own[s], self._workspace, f"gradients of {s}") for s in SIDES]
        places = iter([place for grads in row_grads for place in grads.places])
        ends: dict[Side, Tensor] = {}
        drawn: dict[Side, Tensor] = {}
        for side in SIDES:
            ends[side] = next(places)
            if side in self._drawn:
                drawn[side] = next(places)
        return row_grads, ends, drawn

    def _look_up(self, side: Side, rows_N: Tensor, buffer: str) -> Tensor:
        table = self._tables[side].embeddings
        found = self._workspace.take(f"{buffer} of {side}", (len(rows_N), table.shape[1]), table)
        torch.index_select(table, 0, rows_N, out=found)
        if self._config.global_emb:
            found += self._model.values[global_path(getattr(self._relation, side))]
        return found

    def _prepared(self, side: Side, raw_ND: Tensor, *, operator: bool) -> Rows:
        bound = bind(self._config, self._model.values, side, self._batch.rel) if operator else None
        return Rows(side, raw_ND, bound, self._model.comparator)

    def _pairs(self) -> dict[Side, tuple[Rows, Rows]]:
        """Return, for each corrupted side, the queries and the true candidates."""
        raw = {side: self._look_up(side, self._ends[side], "ends") for side in SIDES}
        if self._config.dynamic_relations:
            queries = {side: self._prepared(side, raw[side], operator=True) for side in SIDES}
            return {
                side: (queries[OTHER_SIDE[side]], self._prepared(side, raw[side], operator=False)) for side in SIDES
            }
        lhs, rhs = self._prepared("lhs", raw["lhs"], operator=False), self._prepared("rhs", raw["rhs"], operator=True)
        return {"lhs": (rhs, lhs), "rhs": (lhs, rhs)}

    def _run(self) -> Figures:
        pairs = self._pairs()
        (loss_lhs, violators_lhs), (loss_rhs, violators_rhs) = (self._corrupt(side, *pairs[side]) for side in SIDES)
        # In standard mode the two pairs are of the same rows.
        ends = list({id(rows): rows for pair in pairs.values() for rows in pair}.values())
        reg = self._regularize(ends) if self._config.regularization_coef else torch.zeros(())
        for side in SIDES:
            first, *others = (self._sent_back(rows) for rows in ends if rows.side == side)
            total = self._end_grads[side].copy_(first)
            for other in others:
                total.add_(other)
        return Figures(loss_lhs + loss_rhs, reg, violators_lhs, violators_rhs)

    def _corrupt(self, side: Side, query: Rows, own: Rows) -> tuple[Tensor, Tensor]:
        """Compare edges with their negatives on one side, collect the gradients; return loss and violators."""
        drawn = self._drawn_rows(side)
        disabled = self._config.disable_lhs_negs if side == "lhs" else self._config.disable_rhs_negs
        contrast = Contrast(self._plan, query, own, drawn, self._ends[side], negatives=not disabled)
        positive_B, negative_BK = contrast.positive_B, contrast.negative_BK
        violators = (negative_BK > positive_B.unsqueeze(1)).count_nonzero()
        if self._observe is not None:
            self._observe(side, positive_B, negative_BK)
        loss = LOSSES[self._config.loss_fn](positive_B, negative_BK, self._batch.weight, self._config.margin)
        weight = self._relation.weight
        if weight != 1:
            loss.positive_B.mul_(weight)
            loss.negative_BK.mul_(weight)
        contrast.backward(loss.positive_B, loss.negative_BK, self._drawn_grads.get(side))
        if drawn is not None:
            place, grad = self._drawn_grads[side], self._sent_back(drawn)
            if grad is not place:
                place.copy_(grad)
        return loss.value * weight, violators

    def _drawn_rows(self, side: Side) -> Rows | None:
        if side not in self._drawn:
            return None
        raw = self._look_up(side, self._drawn[side], "drawn")
        return self._prepared(side, raw, operator=side == "rhs" and not self._config.dynamic_relations)

    def _sent_back(self, rows: Rows) -> Tensor:
        """Return the gradient of looked-up rows, having kept those of the shared parameters they met."""
        grad_ND, param_grads = rows.back()
        self.param_grads += param_grads
        if self._config.global_emb:
            self.param_grads.append(ParamGrad(global_path(getattr(self._relation, rows.side)), grad_ND.sum(0)))
        return grad_ND

    def _regularize(self, ends: list[Rows]) -> Tensor:
        """Add N3 of the compared rows and of the operators to the gradients; return its value."""
        coefficient = self._config.regularization_coef
        # In standard mode PBG counts the one relation's parameters once an edge chunk.
        times = 1 if self._config.dynamic_relations else self._plan.chunks
        total = torch.zeros(())
        for rows in ends:
            value, grad = n3(OPERATORS[self._relation.operator], rows.ready_ND, coefficient)
            rows.add(grad)
            total = total + value
            if rows.bound is not None:
                value, param_grads = n3_parameters(rows.bound, coefficient * times)
                self.param_grads += param_grads
                total = total + value
        return total
