"""``engine=torch``: PBG's training step with analytic gradients, on any machine torch runs on.

The mathematics is PBG's (model.py, losses.py); what autograd would do is written out in ``step``, so a step makes no
graph and few copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch

from pbg_tasks.config.support import check_supported
from pbg_tasks.errors import TrainingDivergedError
from pbg_tasks.formats.directory import BucketStats
from pbg_tasks.model.comparators import comparator
from pbg_tasks.model.losses import LOSSES
from pbg_tasks.model.negatives import UniformSampler, chunk_plan
from pbg_tasks.model.numerics import use_fast_float32
from pbg_tasks.model.operators import OPERATORS
from pbg_tasks.model.regularizers import n3
from pbg_tasks.train.batching import Batch, batches
from pbg_tasks.train.optimizers import adagrad, adagrad_rows, coalesce, row_adagrad
from pbg_tasks.train.parameters import SharedParameters, global_path, operator_path
from pbg_tasks.train.step import Relation, Rows, Scorer, Side, SideScores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from torch import Tensor

    from pbg_tasks.config import ModelConfig, RelationSchema
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.train.tables import Table

CHECK_EVERY = 16
"""Batches between two looks at the loss: often enough to stop early, rare enough to cost nothing."""


class _Gradients:
    """What a step wants to change, gathered before anything is changed."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[Table, list[Tensor], list[Tensor]]] = {}
        self.params: dict[str, list[tuple[Tensor | None, Tensor]]] = {}

    def add_rows(self, table: Table, rows: Tensor, grad: Tensor) -> None:
        _, listed, grads = self.rows.setdefault(id(table), (table, [], []))
        listed.append(rows)
        grads.append(grad)

    def add_param(self, path: str, grad: Tensor, rows: Tensor | None = None) -> None:
        self.params.setdefault(path, []).append((rows, grad))


class TorchEngine:
    """Trains buckets and holds the shared parameters.

    Args:
        config: the model.
        relation_count: relations in dynamic mode.
        threads: CPU threads of torch.
    """

    name = "torch"

    def __init__(self, config: ModelConfig, relation_count: int, *, threads: int = 1) -> None:
        check_supported(config, source="engine torch")
        torch.set_num_threads(threads)
        self.fast_float32 = use_fast_float32()
        self.config = config
        self.shared = SharedParameters(config, relation_count)
        self._scorer = Scorer(config, comparator(config.comparator, bias=config.bias))
        self._loss = LOSSES[config.loss_fn]
        self._relation_lr = config.lr if config.relation_lr is None else config.relation_lr

    def load_parameters(self, params: Mapping[str, np.ndarray], sums: Mapping[str, np.ndarray]) -> None:
        """Take over stored shared parameters; relations that came since keep their start."""
        self.shared.load(params, sums)

    def parameters(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the shared parameters and their Adagrad sums by PBG's path."""
        return self.shared.arrays()

    def train_bucket(
        self,
        edges: EdgeList,
        lhs: Mapping[str, Table],
        rhs: Mapping[str, Table],
        *,
        generator: torch.Generator,
        on_batch: Callable[[int, float], None] | None = None,
    ) -> BucketStats:
        """Train a bucket once.

        Args:
            edges: offsets into the tables.
            lhs: tables of the left-hand side by entity type.
            rhs: of the right-hand side; the same object where it is the same partition.
            generator: decides order and negatives.
            on_batch: told the number of edges and the mean loss an edge, now and then.

        Raises:
            TrainingDivergedError: the loss or a row is not finite.
        """
        sampler = UniformSampler(generator)
        totals = torch.zeros(4, dtype=torch.float64)
        count = told = 0
        told_loss = 0.0
        cut = batches(edges, self.config.batch_size, dynamic=self.config.dynamic_relations, generator=generator)
        for number, batch in enumerate(cut, start=1):
            totals += self.step(batch, lhs, rhs, sampler)
            count += len(batch)
            if number % CHECK_EVERY == 0 or count == len(edges):
                loss = float(totals[0])
                self._check(loss, batch)
                if on_batch is not None:
                    on_batch(count - told, (loss - told_loss) / (count - told))
                told, told_loss = count, loss
        _check_tables([*lhs.items(), *rhs.items()])
        means = (totals / max(count, 1)).tolist()
        return BucketStats(count, *means)

    def _check(self, loss: float, batch: Batch) -> None:
        if loss != loss or abs(loss) == float("inf"):  # noqa: PLR0124 - NaN differs from itself
            where = "" if isinstance(batch.rel, torch.Tensor) else f" in relation {self.config.relations[batch.rel].name!r}"
            raise TrainingDivergedError(f"the loss is {loss}{where}; try a smaller lr or set max_norm")

    def step(
        self,
        batch: Batch,
        lhs: Mapping[str, Table],
        rhs: Mapping[str, Table],
        sampler: UniformSampler,
        observe: Callable[[str, SideScores], None] | None = None,
    ) -> Tensor:
        """Do one step.

        Args:
            batch: the edges; of one relation in standard mode.
            lhs: tables of the left-hand side by entity type.
            rhs: of the right-hand side.
            sampler: draws candidates.
            observe: shown the scores of each side, in memory that is reused afterwards.

        Returns:
            Sums over the batch's edges, float64 (4,): loss, regularizer, violators on the left, on the right.
        """
        index = 0 if self.config.dynamic_relations else int(batch.rel)
        relation = self.config.relations[index]
        gradients = _Gradients()
        draws = self._draws(batch, relation, lhs[relation.lhs], rhs[relation.rhs], sampler)
        step = _Step(self, batch, index, relation, lhs[relation.lhs], rhs[relation.rhs], draws, gradients, observe)
        sums = step.run()
        self._apply(gradients)
        return sums

    def _draws(
        self, batch: Batch, relation: RelationSchema, lhs: Table, rhs: Table, sampler: UniformSampler
    ) -> dict[str, Tensor | None]:
        """Draw candidates, left first, as PBG does; a disabled side draws nothing."""
        plan = chunk_plan(self.config, relation, len(batch))
        disabled = {"lhs": self.config.disable_lhs_negs, "rhs": self.config.disable_rhs_negs}
        draws: dict[str, Tensor | None] = {}
        for side, table in (("lhs", lhs), ("rhs", rhs)):
            if disabled[side]:
                draws[side] = None
            elif plan.kind == "all":
                draws[side] = torch.arange(len(table))
            elif plan.uniform:
                draws[side] = sampler.draw(plan.chunks, plan.uniform, len(table)).view(-1)
            else:
                draws[side] = None
        return draws

    def _apply(self, gradients: _Gradients) -> None:
        for table, rows, grads in gradients.rows.values():
            row_adagrad(table, *coalesce(torch.cat(rows), torch.cat(grads)), self.config.lr)
        for path, pieces in gradients.params.items():
            param, sums = self.shared.values[path], self.shared.sums[path]
            rows = [row for row, _ in pieces if row is not None]
            if not rows:
                adagrad(param, sums, sum((grad for _, grad in pieces), torch.zeros_like(param)), self._relation_lr)
                continue
            flat = torch.cat([grad.reshape(len(grad), -1) for _, grad in pieces])
            distinct, summed = coalesce(torch.cat(rows), flat)
            shape = (len(distinct), *param.shape[1:])
            adagrad_rows(param, sums, distinct, summed.view(shape), self._relation_lr)


class _Step:
    """The forward and backward pass of one batch."""

    def __init__(
        self,
        engine: TorchEngine,
        batch: Batch,
        index: int,
        relation: RelationSchema,
        lhs: Table,
        rhs: Table,
        draws: dict[str, Tensor | None],
        gradients: _Gradients,
        observe: Callable[[str, SideScores], None] | None,
    ) -> None:
        self.observe = observe
        self.engine, self.config, self.scorer = engine, engine.config, engine._scorer  # noqa: SLF001 - its own part
        self.batch, self.index, self.relation, self.draws, self.gradients = batch, index, relation, draws, gradients
        self.tables = {"lhs": lhs, "rhs": rhs}
        self.offsets = {"lhs": batch.lhs, "rhs": batch.rhs}
        self.plan = chunk_plan(self.config, relation, len(batch))
        self.operator = OPERATORS[relation.operator]
        self.sums = torch.zeros(4, dtype=torch.float64)
        if self.config.max_norm is not None:
            self._renorm(self.config.max_norm)
        self.raw = {side: self._look_up(side, self.offsets[side]) for side in ("lhs", "rhs")}
        self.grad: dict[str, Tensor] = {}

    def _renorm(self, max_norm: float) -> None:
        """Shrink the rows this batch looks up to ``max_norm``, in place, as PBG's lookup does."""
        for side in ("lhs", "rhs"):
            table, drawn = self.tables[side].embeddings, self.draws[side]
            torch.embedding_renorm_(table, self.offsets[side], max_norm, 2.0)
            if drawn is not None:
                torch.embedding_renorm_(table, drawn, max_norm, 2.0)

    def _look_up(self, side: Literal["lhs", "rhs"] | str, offsets: Tensor) -> Tensor:
        rows = self.tables[side].embeddings.index_select(0, offsets)
        if self.config.global_emb:
            rows += self.engine.shared.values[global_path(getattr(self.relation, side))]
        return rows

    def _operator(self, side: str) -> Relation:
        """Return the operator of one side with the parameters of this batch's relations."""
        names = self.operator.plural
        if not self.config.dynamic_relations:
            paths = {name: operator_path(self.index, side, name) for name in names}
            return Relation(self.operator, {n: self.engine.shared.values[path] for n, path in paths.items()})
        paths = {name: operator_path(0, side, plural) for name, plural in names.items()}
        rel: Any = self.batch.rel
        return Relation(
            self.operator, {n: self.engine.shared.values[path].index_select(0, rel) for n, path in paths.items()}
        )

    def _keep_param_grads(self, side: str, grads: dict[str, Tensor]) -> None:
        for name, grad in grads.items():
            if self.config.dynamic_relations:
                rel: Any = self.batch.rel
                self.gradients.add_param(operator_path(0, side, self.operator.plural[name]), grad, rel)
            else:
                self.gradients.add_param(operator_path(self.index, side, name), grad)

    def run(self) -> Tensor:
        """Run the step; gradients are gathered, nothing is changed but renormed rows."""
        if self.config.dynamic_relations:
            # The operator turns the known end towards the corrupted one; each direction has its own.
            self._dynamic_side("lhs", known="rhs", operator="rhs")
            self._dynamic_side("rhs", known="lhs", operator="lhs")
        else:
            self._standard()
        for side, grad in self.grad.items():
            self._keep_row_grads(side, self.offsets[side], grad)
        return self.sums

    def _keep_row_grads(self, side: str, offsets: Tensor, grad: Tensor) -> None:
        self.gradients.add_rows(self.tables[side], offsets, grad)
        if self.config.global_emb:
            self.gradients.add_param(global_path(getattr(self.relation, side)), grad.sum(0))

    def _add_grad(self, side: str, grad: Tensor) -> None:
        self.grad[side] = self.grad[side] + grad if side in self.grad else grad

    def _dynamic_side(self, side: str, *, known: str, operator: str) -> None:
        relation = self._operator(operator)
        query, own = self.scorer.ready(self.raw[known], relation), self.scorer.ready(self.raw[side], None)
        drawn = self._drawn(side, None)
        grad_query, grad_own = self._score_side(side, query, own, drawn, None)
        grad_query, grad_own = self._regularize(query, own, relation, operator, (grad_query, grad_own))
        raw_grad, param_grads = self.scorer.back(query, relation, grad_query)
        self._add_grad(known, raw_grad)
        self._keep_param_grads(operator, param_grads)
        self._add_grad(side, self.scorer.back(own, None, grad_own)[0])

    def _standard(self) -> None:
        relation = self._operator("rhs")
        lhs, rhs = self.scorer.ready(self.raw["lhs"], None), self.scorer.ready(self.raw["rhs"], relation)
        grad_rhs, grad_lhs = self._score_side("lhs", rhs, lhs, self._drawn("lhs", None), None)
        more_lhs, more_rhs = self._score_side("rhs", lhs, rhs, self._drawn("rhs", relation), relation)
        grads = grad_lhs + more_lhs, grad_rhs + more_rhs
        grad_lhs, grad_rhs = self._regularize(lhs, rhs, relation, "rhs", grads)
        self._add_grad("lhs", self.scorer.back(lhs, None, grad_lhs)[0])
        raw_grad, param_grads = self.scorer.back(rhs, relation, grad_rhs)
        self._add_grad("rhs", raw_grad)
        self._keep_param_grads("rhs", param_grads)

    def _drawn(self, side: str, relation: Relation | None) -> Rows | None:
        offsets = self.draws[side]
        return None if offsets is None else self.scorer.ready(self._look_up(side, offsets), relation)

    def _score_side(
        self, side: str, query: Rows, own: Rows, drawn: Rows | None, relation: Relation | None
    ) -> tuple[Tensor, Tensor]:
        """Score one corrupted side and go back; return the gradients of the prepared query and own rows."""
        disabled = self.config.disable_lhs_negs if side == "lhs" else self.config.disable_rhs_negs
        work = Side(
            self.scorer,
            self.plan,
            query.ready_ND,
            own.ready_ND,
            None if drawn is None else drawn.ready_ND,
            self.offsets[side],
            negatives=not disabled,
        )
        scores = work.score()
        self._count_violators(side, scores)
        if self.observe is not None:
            self.observe(side, scores)
        weight = self.relation.weight
        loss = self.engine._loss(*scores, self.batch.weight, self.config.margin)  # noqa: SLF001 - its own part
        self.sums[0] += loss.value * weight
        if weight != 1:
            loss.positive_B.mul_(weight)
            loss.negative_BK.mul_(weight)
        grad_query, grad_own, grad_drawn = work.backward(loss.positive_B, loss.negative_BK)
        offsets = self.draws[side]
        if grad_drawn is not None and drawn is not None and offsets is not None:
            raw_grad, param_grads = self.scorer.back(drawn, relation, grad_drawn)
            self._keep_row_grads(side, offsets, raw_grad)
            if relation is not None:
                self._keep_param_grads("rhs", param_grads)
        return grad_query, grad_own

    def _count_violators(self, side: str, scores: SideScores) -> None:
        violators = (scores.negative_BK > scores.positive_B.unsqueeze(1)).sum()
        self.sums[2 if side == "lhs" else 3] += violators

    def _regularize(
        self, first: Rows, second: Rows, relation: Relation, side: str, grads: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Add N3 of both prepared embeddings and of the operator's parameters to their gradients."""
        coefficient = self.config.regularization_coef
        if not coefficient:
            return grads
        added = []
        for rows, grad in zip((first, second), grads, strict=True):
            value, extra = n3(self.operator, rows.ready_ND, coefficient)
            self.sums[1] += value
            added.append(grad + extra)
        self._regularize_params(relation, side, coefficient)
        return added[0], added[1]

    def _regularize_params(self, relation: Relation, side: str, coefficient: float) -> None:
        if not relation.params:
            return
        # In standard mode PBG counts the one relation's parameters once an edge chunk.
        times = 1 if self.config.dynamic_relations else self.plan.chunks
        stacked = torch.cat(list(relation.params.values()), dim=-1)
        value, grad = n3(self.operator, stacked, coefficient * times)
        self.sums[1] += value
        pieces = grad.split([param.shape[-1] for param in relation.params.values()], dim=-1)
        self._keep_param_grads(side, dict(zip(relation.params, pieces, strict=True)))


def _check_tables(tables: list[tuple[str, Table]]) -> None:
    for entity, table in tables:
        if not torch.isfinite(table.embeddings.sum()):
            raise TrainingDivergedError(f"embeddings of {entity!r} are not finite; try a smaller lr or set max_norm")
