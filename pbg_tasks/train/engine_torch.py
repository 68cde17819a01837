"""``engine=torch``: PBG's training step with analytic gradients, on any machine torch runs on."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import torch

from pbg_tasks.train.engine import Engine
from pbg_tasks.train.optimizers import adagrad, adagrad_rows, row_adagrad
from pbg_tasks.train.step import Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pbg_tasks.model.negatives import NegativeSampler
    from pbg_tasks.model.relations import ParamGrad
    from pbg_tasks.train.batching import Batch
    from pbg_tasks.train.known import KnownEdges
    from pbg_tasks.train.step import Figures, Observer
    from pbg_tasks.train.tables import Table


class TorchEngine(Engine):
    """Computes with torch."""

    name = "torch"

    def step(
        self,
        batch: Batch,
        lhs: Mapping[str, Table],
        rhs: Mapping[str, Table],
        sampler: NegativeSampler,
        observe: Observer | None = None,
        *,
        known: KnownEdges | None = None,
        rate: float = 1.0,
        worker: int = 0,
    ) -> Figures:
        tables = self._tables(batch, lhs, rhs)
        step = Step(self._model, batch, tables, sampler, self._workspaces[worker], observe, known)
        for grads in step.row_grads:
            row_adagrad(grads.table, grads.rows_M, grads.grads_MD, self.config.lr * rate)
        self._step_parameters(step.param_grads, rate)
        return step.figures

    def _step_parameters(self, param_grads: list[ParamGrad], rate: float) -> None:
        lr = rate * (self.config.lr if self.config.relation_lr is None else self.config.relation_lr)
        whole: dict[str, list[torch.Tensor]] = defaultdict(list)
        by_row: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
        for path, grad, rows_M in param_grads:
            if rows_M is None:
                whole[path].append(grad)
            else:
                by_row[path].append((rows_M, grad))
        for path, grads in whole.items():
            adagrad(self.shared.values[path], self.shared.sums[path], torch.stack(grads).sum(0), lr)
        for path, pieces in by_row.items():
            rows_M, grads_M = (torch.cat(column) for column in zip(*pieces, strict=True))
            adagrad_rows(self.shared.values[path], self.shared.sums[path], rows_M, grads_M, lr)
