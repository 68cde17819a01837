"""``engine=torch``: PBG's training step with analytic gradients.

It runs on any machine on which torch runs.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from pbg_tasks.model.registry import comparator
from pbg_tasks.model.relations import ParamGrad
from pbg_tasks.training.engine.base import Engine
from pbg_tasks.training.engine.optimizers import adagrad, adagrad_rows, row_adagrad
from pbg_tasks.training.engine.rounding import Rounding
from pbg_tasks.training.engine.step import Step

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from torch import Tensor

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.training.engine.device import Host
    from pbg_tasks.training.engine.step import Figures, StepInput


class TorchEngine(Engine):
    """Engine on torch."""

    name = "torch"

    def __init__(
        self,
        config: ModelConfig,
        relation_count: int,
        *,
        workers: int = 1,
        place: Host | None = None,
        loops: np.ndarray | None = None,
    ) -> None:
        super().__init__(config, relation_count, workers=workers, place=place, loops=loops)
        products = comparator(config.comparator, bias=config.bias, bfloat16=config.product_precision == "bf16")
        self._trained = replace(self._model, comparator=products)

    def _step(self, given: StepInput) -> Figures:
        """Train one batch."""
        batch, tables = given.batch, given.tables
        workspace = self._workspaces[given.worker]
        drawn = self._draw(self.config, batch, tables, given.sampler)
        selves = self.selves.of(batch, tables)
        key = given.sampler.key() if self.config.has_random_steps else None
        sampled = key if self.config.gradient == "sampled" else None
        step = Step(
            self._trained, batch, tables, drawn, workspace, given.observe, given.known, selves=selves, key=sampled
        )
        lr, relation_lr = self._learning_rates(*given.rates)
        for grads in step.row_grads:
            side = int(grads.table is not tables["lhs"])
            rounding = None if key is None or not grads.table.narrow else Rounding(key, side)
            row_adagrad(grads.table, grads.rows_M, grads.grads_MD, lr, rounding)
        for path, grad, rows_M in by_parameter(step.param_grads):
            values, sums = self.shared.values[path], self.shared.sums[path]
            if rows_M is None:
                adagrad(values, sums, grad, relation_lr)
            else:
                adagrad_rows(values, sums, rows_M, grad, relation_lr)
        return step.figures

    def _learning_rates(self, rate: float) -> tuple[float, float]:
        """Return ``rate`` times the learning rates of embeddings and shared parameters."""
        lr, relation_lr = self.config.lr, self.config.relation_lr
        return lr * rate, (lr if relation_lr is None else relation_lr) * rate


def by_parameter(param_grads: list[ParamGrad]) -> Iterator[ParamGrad]:
    """Yield one gradient of each parameter.

    Several gradients of a whole parameter are summed, several sets of rows concatenated.
    """
    whole: dict[str, list[Tensor]] = defaultdict(list)
    by_row: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for path, grad, rows_M in param_grads:
        if rows_M is None:
            whole[path].append(grad)
        else:
            by_row[path].append((rows_M, grad))
    for path, grads in whole.items():
        yield ParamGrad(path, torch.stack(grads).sum(0))
    for path, edge_chunks in by_row.items():
        rows_M, grads_M = (torch.cat(column) for column in zip(*edge_chunks, strict=True))
        yield ParamGrad(path, grads_M, rows_M)
