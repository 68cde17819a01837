"""``engine=torch``: PBG's training step with analytic gradients, on any machine torch runs on."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import torch

from pbg_tasks.config.support import check_supported
from pbg_tasks.errors import TrainingDivergedError
from pbg_tasks.formats.directory import BucketStats
from pbg_tasks.model.comparators import comparator
from pbg_tasks.model.negatives import UniformSampler
from pbg_tasks.model.numerics import use_fast_float32
from pbg_tasks.train.batching import batches, check_edges
from pbg_tasks.train.optimizers import adagrad, adagrad_rows, row_adagrad
from pbg_tasks.train.parameters import SharedParameters
from pbg_tasks.train.step import Model, Step
from pbg_tasks.train.workspace import Workspace, keep_freed_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.model.negatives import NegativeSampler
    from pbg_tasks.model.relations import ParamGrad
    from pbg_tasks.train.batching import Batch
    from pbg_tasks.train.step import Figures, Observer
    from pbg_tasks.train.tables import Table

CHECK_EVERY = 16
"""Batches between two looks at the loss: often enough to stop early, rare enough to cost nothing."""


class TorchEngine:
    """Trains buckets and holds the shared parameters.

    The same seed, threads and machine give the same bits.

    Args:
        config: the model.
        relation_count: relations in dynamic mode.
        threads: CPU threads of torch, for the whole process. Small products gain nothing from a second.

    Raises:
        ConfigError: the config asks for what this engine does not have.
    """

    name = "torch"

    def __init__(self, config: ModelConfig, relation_count: int, *, threads: int = 1) -> None:
        check_supported(config, source="engine torch")
        torch.set_num_threads(threads)
        self.fast_float32 = use_fast_float32()
        keep_freed_memory()
        self.config = config
        self.shared = SharedParameters(config, relation_count)
        self._relation_count = relation_count if config.dynamic_relations else len(config.relations)
        self._model = Model(config, self.shared.values, comparator(config.comparator, bias=config.bias))
        self._workspace = Workspace()

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
            on_batch: told, now and then, the number of edges since the last time and their mean loss.

        Raises:
            FormatError: an edge names a relation or an entity there is not; nothing was trained.
            TrainingDivergedError: the loss or a row is not finite.
        """
        started = time.perf_counter()
        check_edges(edges, self.config, self._relation_count, lhs, rhs)
        sampler = UniformSampler(generator)
        totals = torch.zeros(4, dtype=torch.float64)
        count = told = 0
        told_loss = 0.0
        cut = batches(edges, self.config.batch_size, dynamic=self.config.dynamic_relations, generator=generator)
        for number, batch in enumerate(cut, start=1):
            totals += torch.stack(self.step(batch, lhs, rhs, sampler))
            count += len(batch)
            if number % CHECK_EVERY == 0 or count == len(edges):
                loss = float(totals[0])
                self._check_loss(loss, number, batch)
                if on_batch is not None:
                    on_batch(count - told, (loss - told_loss) / (count - told))
                told, told_loss = count, loss
        self._check_finite(lhs, rhs)
        loss, reg, violators_lhs, violators_rhs = (totals / max(count, 1)).tolist()
        return BucketStats(count, loss, reg, violators_lhs, violators_rhs, seconds=time.perf_counter() - started)

    def step(
        self,
        batch: Batch,
        lhs: Mapping[str, Table],
        rhs: Mapping[str, Table],
        sampler: NegativeSampler,
        observe: Observer | None = None,
    ) -> Figures:
        """Train one batch.

        Args:
            batch: the edges; of one relation in standard mode.
            lhs: tables of the left-hand side by entity type.
            rhs: of the right-hand side.
            sampler: draws negatives.
            observe: shown the scores of each side.
        """
        relation = self.config.relations[batch.rel if isinstance(batch.rel, int) else 0]
        step = Step(
            self._model, batch, {"lhs": lhs[relation.lhs], "rhs": rhs[relation.rhs]}, sampler, self._workspace, observe
        )
        for grads in step.row_grads:
            row_adagrad(grads.table, grads.rows_M, grads.grads_MD, self.config.lr)
        self._step_parameters(step.param_grads)
        return step.figures

    def _step_parameters(self, param_grads: list[ParamGrad]) -> None:
        lr = self.config.lr if self.config.relation_lr is None else self.config.relation_lr
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

    def _check_loss(self, loss: float, number: int, batch: Batch) -> None:
        if math.isfinite(loss):
            return
        where = f"relation {self.config.relations[batch.rel].name!r}, " if isinstance(batch.rel, int) else ""
        raise TrainingDivergedError(
            f"{where}batch {number} or one of the {CHECK_EVERY - 1} before it: the loss is {loss}; "
            "try a smaller lr, or set max_norm"
        )

    def _check_finite(self, *sides: Mapping[str, Table]) -> None:
        trained = [(f"parameter {path!r}", value) for path, value in self.shared.values.items()]
        for side in sides:
            for entity, table in side.items():
                trained.append((f"embeddings of entity type {entity!r}", table.embeddings))
                trained.append((f"sums of squared gradients of entity type {entity!r}", table.row_sums))
        for what, values in trained:
            # a sum is finite only if every number is (or all are so large that the next step's would not be)
            if not math.isfinite(float(values.sum())):
                raise TrainingDivergedError(f"{what}: some are not finite; try a smaller lr, or set max_norm")
