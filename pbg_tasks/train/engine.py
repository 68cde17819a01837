"""Engines train buckets and hold the shared parameters; they differ in who computes a step."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch

from pbg_tasks.config.support import check_supported
from pbg_tasks.errors import TrainingDivergedError
from pbg_tasks.model.families import Families
from pbg_tasks.model.negatives import UniformSampler, chunk_plan, draw_negatives
from pbg_tasks.model.numerics import keep_freed_memory, use_fast_float32
from pbg_tasks.model.registry import comparator
from pbg_tasks.storage.parallel import work_off
from pbg_tasks.train.batching import GatheredEdges, batches, check_edges
from pbg_tasks.train.held_out import Ranking, evaluation_config
from pbg_tasks.train.hogwild import forked
from pbg_tasks.train.known import KnownEdges
from pbg_tasks.train.parameters import SharedParameters
from pbg_tasks.train.place import Host
from pbg_tasks.train.step import Model, Step
from pbg_tasks.train.tally import CHECK_EVERY, Tally
from pbg_tasks.train.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.formats.directory import BucketStats, EvalStats
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.model.negatives import NegativeSampler
    from pbg_tasks.model.parameters import Side
    from pbg_tasks.train.batching import Batch, EdgeSource
    from pbg_tasks.train.step import Figures, Observer
    from pbg_tasks.train.tables import Table


class Engine(ABC):
    """Trains buckets and holds the shared parameters.

    The same seed, threads and machine give the same bits.

    Args:
        config: the model.
        relation_count: relations in the data, for a config that does not list them.
        workers: threads that train a bucket together (HOGWILD). Only one gives the same bits again.
        place: where buckets are trained; None: in this machine's memory.

    Raises:
        ConfigError: the config asks for what this engine does not have.
    """

    name: ClassVar[str]

    def __init__(
        self, config: ModelConfig, relation_count: int, *, workers: int = 1, place: Host | None = None
    ) -> None:
        check_supported(config, source=f"engine {self.name}")
        torch.set_num_threads(1)  # the products are too small for two threads to help each other
        self.fast_float32 = use_fast_float32()
        keep_freed_memory()
        self.config, self.workers = config, workers
        self.place = Host() if place is None else place
        self.families = Families(config, relation_count)
        self.shared = SharedParameters(config, relation_count, self.place.device)
        self._model = Model(config, self.shared.values, comparator(config.comparator, bias=config.bias))
        self._workspaces = [Workspace() for _ in range(workers)]

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
        rate: Callable[[float], float] | None = None,
        delay: float = 0.0,
        on_batch: Callable[[int, float], None] | None = None,
    ) -> BucketStats:
        """Train a bucket once.

        Args:
            edges: offsets into the tables.
            lhs: tables of the left-hand side by entity type.
            rhs: of the right-hand side; the same object where it is the same partition.
            generator: decides order and negatives.
            rate: factor of the learning rates when a share of the bucket, from 0 to 1, is done; None is 1 throughout.
            delay: seconds by which every worker but the first starts later.
            on_batch: told, now and then, the number of edges since the last time and their mean loss.

        Raises:
            FormatError: an edge names a relation or an entity there is not; nothing was trained.
            TrainingDivergedError: the loss or a row is not finite.
        """
        started = time.perf_counter()
        check_edges(edges, self.config, self.families, lhs, rhs)
        tally = Tally(len(edges), on_batch, self.place)
        with self.place.hold(lhs, rhs, trained=True) as (there_lhs, there_rhs):
            self._train(edges, there_lhs, there_rhs, tally, generator, rate, delay)
        stats = tally.stats(time.perf_counter() - started)
        if not math.isfinite(stats.reg):
            raise TrainingDivergedError(f"the penalty of the regularizer is {stats.reg}; try a smaller lr")
        return stats

    def _train(
        self,
        edges: EdgeList,
        lhs: Mapping[str, Table],
        rhs: Mapping[str, Table],
        tally: Tally,
        generator: torch.Generator,
        rate: Callable[[float], float] | None,
        delay: float,
    ) -> None:
        """Train a bucket whose tables are where it is trained."""
        samplers = [UniformSampler(generator), *map(UniformSampler, forked(generator, self.workers - 1))]
        known = KnownEdges(edges) if self.config.mask_known_negatives else None

        def work(worker: int, item: tuple[int, Batch]) -> None:
            number, batch = item
            factor = 1.0 if rate is None else rate(tally.count / len(edges))
            figures = self.step(batch, lhs, rhs, samplers[worker], known=known, rate=factor, worker=worker)
            loss = tally.add(len(batch), figures)
            if loss is not None:
                self._check_loss(loss, number, batch)

        cut = enumerate(batches(edges, self.config, self.families, generator, self._edge_source), start=1)
        work_off(cut, self.workers, work, delay=delay)
        self._check_finite(lhs, rhs)

    def evaluate(
        self,
        edges: EdgeList,
        lhs: Mapping[str, Table],
        rhs: Mapping[str, Table],
        *,
        generator: torch.Generator,
    ) -> EvalStats:
        """Rank edges among the negatives of the evaluation (``eval_num_*``), as PBG does during training.

        Raises:
            FormatError: an edge names a relation or an entity there is not.
            TrainingDivergedError: the loss is not finite.
        """
        check_edges(edges, self.config, self.families, lhs, rhs)
        config = evaluation_config(self.config)
        model = replace(self._model, config=config)
        sampler, ranking = UniformSampler(generator), Ranking.start(generator)
        loss = torch.zeros((), device=self.place.device)
        with self.place.hold(lhs, rhs, trained=False) as (there_lhs, there_rhs):
            for batch in batches(edges, config, self.families, generator, self._edge_source):
                tables = self._tables(batch, there_lhs, there_rhs)
                drawn = self._draw(config, batch, tables, sampler)
                step = Step(model, batch, tables, drawn, self._workspaces[0], ranking.add, train=False)
                loss = loss + step.figures.loss
        if not math.isfinite(float(loss)):
            raise TrainingDivergedError(f"held-out edges: the loss is {float(loss)}; try a smaller lr, or set max_norm")
        return ranking.stats(len(edges), float(loss))

    @abstractmethod
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
        """Train one batch.

        Args:
            batch: the edges.
            lhs: tables of the left-hand side by entity type.
            rhs: of the right-hand side.
            sampler: draws negatives.
            observe: shown the scores of each side.
            known: edges that are no negatives.
            rate: factor of the learning rates.
            worker: which one's memory to use.
        """

    def _edge_source(self, edges: EdgeList, order: np.ndarray, config: ModelConfig, families: Families) -> EdgeSource:
        """Return what makes the batches of a bucket."""
        return GatheredEdges(edges, order, config, families)

    def _draw(
        self, config: ModelConfig, batch: Batch, tables: Mapping[Side, Table], sampler: NegativeSampler
    ) -> dict[Side, torch.Tensor]:
        """Draw the negatives of a batch; every place has the same."""
        relation = config.relations[batch.relation]
        entities = {side: len(table) for side, table in tables.items()}
        drawn = draw_negatives(config, relation, chunk_plan(config, relation, len(batch)), entities, sampler)
        return {side: self.place.put(rows_N) for side, rows_N in drawn.items()}

    def _tables(self, batch: Batch, lhs: Mapping[str, Table], rhs: Mapping[str, Table]) -> dict[Side, Table]:
        relation = self.config.relations[batch.relation]
        return {"lhs": lhs[relation.lhs], "rhs": rhs[relation.rhs]}

    def _check_loss(self, loss: float, number: int, batch: Batch) -> None:
        if math.isfinite(loss):
            return
        where = f"relation {self.config.relations[batch.relation].name!r}, " if batch.rel is None else ""
        raise TrainingDivergedError(
            f"{where}batch {number} or one of the {CHECK_EVERY * (1 + self.place.late) - 1} before it: "
            f"the loss is {loss}; "
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
