"""One training step without autograd.

It computes the scores of a batch's edges and their negatives, the loss, and every gradient. An edge is scored twice,
once for each side that is corrupted. The end on the other side is the *query*; the end on the corrupted side and its
negatives are *candidates*. With dynamic relations the operator works on the query (each direction has its own); in
standard mode it works on the right-hand side, query or candidate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pbg_tasks.model.negatives import chunk_plan
from pbg_tasks.model.parameters import OTHER_SIDE, SIDES, global_path
from pbg_tasks.model.registry import loss, operator, regularizer
from pbg_tasks.model.regularizers import penalty_of_parameters, penalty_of_rows
from pbg_tasks.model.relations import ParamGrad, bind
from pbg_tasks.training.engine.corrupted_side import CorruptedSide
from pbg_tasks.training.engine.lookup import Single, shrink_rows
from pbg_tasks.training.engine.rows import RowGradients, Rows
from pbg_tasks.training.engine.sampling import sample_slopes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.model.comparators import Comparator
    from pbg_tasks.model.negatives import NegativeSampler
    from pbg_tasks.model.parameters import Side
    from pbg_tasks.training.data.tables import Table
    from pbg_tasks.training.engine.batching import Batch
    from pbg_tasks.training.engine.known_edges import KnownEdges
    from pbg_tasks.training.engine.lookup import Lookup
    from pbg_tasks.training.engine.workspace import Workspace


class Observer(Protocol):
    """Observer of the scores of a step."""

    def __call__(self, side: Side, positive_B: Tensor, negative_BK: Tensor) -> None:
        """Receive one corrupted side's scores; masked ones are -1e9.

        The memory is reused afterwards.
        """


class Figures(NamedTuple):
    """Figures of a step, summed over its edges.

    They are scalars, or (K,) of K steps.

    Attributes:
        loss: loss of both sides.
        reg: penalty of the regularizer.
        violators_lhs: number of negatives on the left that score above their edge.
        violators_rhs: same on the right.
    """

    loss: Tensor
    reg: Tensor
    violators_lhs: Tensor
    violators_rhs: Tensor


@dataclass(frozen=True, slots=True)
class StepInput:
    """Batch to train, with everything that its step takes.

    Attributes:
        batch: the edges.
        tables: tables of both sides.
        sampler: draws negatives.
        observe: called with the scores of each side.
        known: edges that must not serve as negatives.
        rates: factors of the learning rates, one for each step; several: the batch is as many of ``batch_size`` edges.
        worker: number of the worker whose memory is used.
    """

    batch: Batch
    tables: Mapping[Side, Table]
    sampler: NegativeSampler
    observe: Observer | None = None
    known: KnownEdges | None = None
    rates: Sequence[float] = (1.0,)
    worker: int = 0


@dataclass(frozen=True, slots=True)
class Model:
    """Parts of the model that a step needs.

    Attributes:
        config: the model.
        values: shared parameters by path.
        comparator: comparator of the config.
    """

    config: ModelConfig
    values: Mapping[str, Tensor]
    comparator: Comparator


class _Compared(NamedTuple):
    """Prepared ends of a batch's edges on one corrupted side.

    Attributes:
        query: the known ends.
        own: the true candidates.
        known: the known ends as candidates; None: not used.
    """

    query: Rows
    own: Rows
    known: Rows | None


class Step:
    """Forward and backward pass of one batch.

    Only rows that ``max_norm`` shrinks are changed.

    Args:
        model: config, shared parameters and comparator.
        batch: the edges.
        tables: tables of both sides; the same object twice where both are the same partition.
        drawn: int64, offsets of the negatives drawn for each side that has some (``draw_negatives``).
        workspace: large buffers.
        observe: called with the scores.
        known: edges that must not serve as negatives.
        selves: bool (B,), whether each edge's known end is a negative (``SelfNegatives.of``); None: none is.
        key: number from which sampled gradients are drawn; None: gradients are dense.
        train: whether gradients are computed.

    Attributes:
        figures: the step's figures.
        row_grads: gradients of embeddings, for each table that is trained.
        param_grads: gradients of shared parameters; several may belong to one parameter.
    """

    def __init__(
        self,
        model: Model,
        batch: Batch,
        tables: Mapping[Side, Table],
        drawn: Mapping[Side, Tensor],
        workspace: Workspace,
        observe: Observer | None = None,
        known: KnownEdges | None = None,
        *,
        selves: Tensor | None = None,
        key: int | None = None,
        train: bool = True,
    ) -> None:
        self._model, self._config = model, model.config
        self._batch, self._tables = batch, tables
        self._workspace, self._observe = workspace, observe
        self._known, self._train = known, train
        self._selves_B, self._key = selves, key
        self._relation = self._config.relations[batch.relation]
        self._two_operators = self._config.has_two_operators(self._relation)
        self._types: dict[Side, str] = {"lhs": self._relation.lhs, "rhs": self._relation.rhs}
        self._plan = chunk_plan(self._config, self._relation, len(batch))
        self._ends: dict[Side, Lookup] = {"lhs": batch.lhs, "rhs": batch.rhs}
        self._drawn = {side: Single(rows_N) for side, rows_N in drawn.items()}
        if self._config.max_norm is not None and train:
            self._renorm(self._config.max_norm)
        self.row_grads: list[RowGradients] = []
        self._end_grads: dict[Side, Tensor] = {}
        self._drawn_grads: dict[Side, Tensor] = {}
        if train:
            self._reserve()
        self.param_grads: list[ParamGrad] = []
        self.figures = self._run()

    def _looked_up(self, side: Side) -> list[Tensor]:
        lookups = [self._ends[side], *([self._drawn[side]] if side in self._drawn else [])]
        return [lookup.rows_M for lookup in lookups]

    def _trainable(self, side: Side) -> bool:
        return self._config.entities[self._types[side]].trainable

    def _renorm(self, max_norm: float) -> None:
        """Shrink the looked-up rows to ``max_norm``, in place.

        PBG's lookup does so, too. Rows of frozen types stay.
        """
        for side in SIDES:
            for rows_M in self._looked_up(side) if self._trainable(side) else []:
                shrink_rows(self._tables[side].embeddings, rows_M, max_norm)

    def _reserve(self) -> None:
        """Reserve memory for the gradient of every looked-up row."""
        own = {side: self._looked_up(side) for side in SIDES}
        if self._tables["lhs"] is self._tables["rhs"]:
            edge_chunks = own["lhs"] + own["rhs"]
            grads: dict[Side, RowGradients] = {
                "lhs": RowGradients(self._tables["lhs"], edge_chunks, self._workspace, "gradients")
            }
        else:
            grads = {
                side: RowGradients(self._tables[side], own[side], self._workspace, f"gradients of {side}")
                for side in SIDES
            }
        places = iter([place for of_table in grads.values() for place in of_table.places])
        for side in SIDES:
            self._end_grads[side] = next(places)
            if side in self._drawn:
                self._drawn_grads[side] = next(places)
        self.row_grads = [of_table for side, of_table in grads.items() if self._trainable(side)]

    def _look_up(self, side: Side, lookup: Lookup, buffer: str) -> Tensor:
        table, like = self._tables[side].embeddings, self._tables[side].row_sums
        found = self._workspace.take(f"{buffer} of {side}", (len(lookup), table.shape[1]), like)
        # In training the rows themselves were shrunk; evaluation leaves the table as it is.
        lookup.gather(
            table, found, max_norm=None if self._train or not self._trainable(side) else self._config.max_norm
        )
        if self._config.global_emb:
            found += self._model.values[global_path(self._types[side])]
        return found

    def _prepared(self, side: Side, raw_ND: Tensor, operator: Side | None = None) -> Rows:
        """Prepare rows of a side for the comparator.

        ``operator`` is the side whose operator is applied first, if any.
        """
        bound = None
        if operator is not None:
            batch = self._batch
            bound = bind(self._config, self._model.values, operator, batch.family, batch.rel, batch.groups)
        return Rows(side, raw_ND, bound, self._model.comparator)

    def _compared(self) -> dict[Side, _Compared]:
        """Return the compared rows of each corrupted side."""
        raw = {side: self._look_up(side, self._ends[side], "ends") for side in SIDES}
        if self._two_operators:
            queries = {side: self._prepared(side, raw[side], side) for side in SIDES}
            ends = {side: self._prepared(side, raw[side]) for side in SIDES}
            return {side: _Compared(queries[OTHER_SIDE[side]], ends[side], ends[OTHER_SIDE[side]]) for side in SIDES}
        lhs, rhs = self._prepared("lhs", raw["lhs"]), self._prepared("rhs", raw["rhs"], "rhs")
        selves: dict[Side, Rows] = {}
        if self._selves_B is not None:
            selves = {"lhs": self._prepared("rhs", raw["rhs"]), "rhs": self._prepared("lhs", raw["lhs"], "rhs")}
        return {"lhs": _Compared(rhs, lhs, selves.get("lhs")), "rhs": _Compared(lhs, rhs, selves.get("rhs"))}

    def _run(self) -> Figures:
        compared = self._compared()
        (loss_lhs, violators_lhs), (loss_rhs, violators_rhs) = (self._corrupt(side, compared[side]) for side in SIDES)
        # In standard mode the two sides compare the same rows.
        ends = list({id(rows): rows for each in compared.values() for rows in (each.query, each.own)}.values())
        reg = self._regularize(ends) if self._config.regularization_coef else loss_lhs.new_zeros(())
        known = [each.known for each in compared.values() if each.known is not None]
        looked_up = {id(rows): rows for rows in (*ends, *known)}
        for side in SIDES if self._train else ():
            total, *others = (self._sent_back(rows) for rows in looked_up.values() if rows.side == side)
            for other in others:
                total = total + other
            self._ends[side].spread(total, self._end_grads[side])
        return Figures(loss_lhs + loss_rhs, reg, violators_lhs, violators_rhs)

    def _corrupt(self, side: Side, compared: _Compared) -> tuple[Tensor, Tensor]:
        """Compare edges with their negatives on one side, and collect gradients.

        Returns:
            Loss, and number of violators.
        """
        drawn = self._drawn_rows(side)
        disabled = self._config.disable_lhs_negs if side == "lhs" else self._config.disable_rhs_negs
        side_scores = CorruptedSide(
            self._plan,
            compared.query,
            compared.own,
            drawn,
            self._ends[side].rows_M,
            negatives=not disabled,
            selves=None if self._selves_B is None else compared.known,
            self_B=self._selves_B,
        )
        positive_B, negative_BK = side_scores.positive_B, side_scores.negative_BK
        if self._known is not None and negative_BK.shape[1]:
            self._mask_known(self._known, side, negative_BK)
        violators = (negative_BK > positive_B.unsqueeze(1)).count_nonzero()
        if self._observe is not None:
            self._observe(side, positive_B, negative_BK)
        found = loss(self._config.loss_fn)(positive_B, negative_BK, self._batch.weight, self._config.margin)
        weight = self._relation.side_weights[SIDES.index(side)]
        if weight != 1:
            found.positive_B.mul_(weight)
            found.negative_BK.mul_(weight)
        if not self._train:
            return found.value * weight, violators
        if self._key is not None and negative_BK.shape[1]:
            # Not of a known end: that has no part in the products.
            products = found.negative_BK[:, : -1 if compared.known is not None and self._selves_B is not None else None]
            sample_slopes(products, variance=self._config.gradient_variance, key=self._key, side=SIDES.index(side))
        side_scores.backward(found.positive_B, found.negative_BK, self._drawn_grads.get(side))
        if drawn is not None:
            place, grad = self._drawn_grads[side], self._sent_back(drawn)
            if grad is not place:
                place.copy_(grad)
        return found.value * weight, violators

    def _mask_known(self, known: KnownEdges, side: Side, negative_BK: Tensor) -> None:
        ends, drawn = {name: lookup.rows_M.numpy() for name, lookup in self._ends.items()}, self._drawn.get(side)
        if self._batch.ids is None or any(self._config.entities[entity].featurized for entity in self._types.values()):
            return  # an entity with features has no offset to find
        known.mask(
            side,
            negative_BK,
            self._plan,
            rel_B=self._batch.ids,
            known_B=ends[OTHER_SIDE[side]],
            own_B=ends[side],
            drawn=None if drawn is None else drawn.rows_M.numpy(),
        )

    def _drawn_rows(self, side: Side) -> Rows | None:
        if side not in self._drawn:
            return None
        raw = self._look_up(side, self._drawn[side], "drawn")
        return self._prepared(side, raw, "rhs" if side == "rhs" and not self._two_operators else None)

    def _sent_back(self, rows: Rows) -> Tensor:
        """Return the gradient of looked-up rows.

        The gradients of the shared parameters that apply to them are collected.
        """
        grad_ND, param_grads = rows.back()
        self.param_grads += param_grads
        if self._config.global_emb and self._trainable(rows.side):
            self.param_grads.append(ParamGrad(global_path(self._types[rows.side]), grad_ND.sum(0)))
        return grad_ND

    def _regularize(self, ends: list[Rows]) -> Tensor:
        """Add the regularizer's gradients and return its value.

        It regards the compared rows and the operators.
        """
        coefficient, penalty = self._config.regularization_coef, regularizer(self._config.regularizer)
        applied, times = operator(self._relation.operator), 1
        if not self._two_operators:
            times = penalty.times(applied, edges=len(self._batch), chunks=self._plan.chunks)
        total = ends[0].ready_ND.new_zeros(())
        for rows in ends:
            value, grad = penalty_of_rows(penalty, applied, rows.ready_ND, coefficient)
            rows.add(grad)
            total = total + value
            if rows.bound is not None:
                value, param_grads = penalty_of_parameters(penalty, rows.bound, coefficient * times)
                self.param_grads += param_grads
                total = total + value
        return total
