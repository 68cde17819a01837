"""Engines, which train buckets and have the shared parameters.

They differ in the code that computes a step.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, ClassVar, NoReturn, Protocol

import torch

from pbg_tasks.errors import TrainingDivergedError
from pbg_tasks.formats.memory import keep_freed_memory
from pbg_tasks.model.families import Families
from pbg_tasks.model.negatives import UniformSampler, chunk_plan, draw_negatives
from pbg_tasks.model.numerics import use_fast_float32
from pbg_tasks.model.registry import comparator
from pbg_tasks.storage.parallel import work_off
from pbg_tasks.training.data.finite import check_trained
from pbg_tasks.training.data.parameters import SharedParameters
from pbg_tasks.training.engine.batching import GatheredEdges, batches, check_edges
from pbg_tasks.training.engine.degrees import bucket_samplers
from pbg_tasks.training.engine.device import Host
from pbg_tasks.training.engine.generators import forked, restore, state_of
from pbg_tasks.training.engine.held_out import Ranking, evaluation_config
from pbg_tasks.training.engine.known_edges import KnownEdges
from pbg_tasks.training.engine.pace import NOTHING, STEADY, Limits, Pace, Position
from pbg_tasks.training.engine.self_negatives import SelfNegatives
from pbg_tasks.training.engine.step import Model, Step, StepInput
from pbg_tasks.training.engine.step_counters import CHECK_EVERY, StepCounters, Stretch
from pbg_tasks.training.engine.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    from torch import Tensor

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.formats.directory import BucketStats, EvalStats
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.model.negatives import NegativeSampler
    from pbg_tasks.model.parameters import Side
    from pbg_tasks.training.data.tables import Table
    from pbg_tasks.training.engine.batching import Batch, EdgeSource
    from pbg_tasks.training.engine.step import Figures, Observer


@dataclass(frozen=True, slots=True)
class HeldOutBatch:
    """A batch of held-out edges that any worker can rank.

    All that it needs from the generator is drawn.

    Attributes:
        number: number of the batch, from 0.
        batch: the edges.
        tables: of both sides.
        drawn: negatives, in the form of a step's argument.
        ranking: ranking of this batch alone.
    """

    number: int
    batch: Batch
    tables: Mapping[Side, Table]
    drawn: Mapping[Side, Tensor]
    ranking: Ranking


class StepGuard(Protocol):
    """Lock under which another thread changes the shared parameters between steps."""

    def step(self) -> AbstractContextManager[None]:
        """Surround one step."""
        ...


class Engine(ABC):
    """Trainer of buckets, with the shared parameters.

    The same seed, number of threads and machine give the same bits.

    Args:
        config: the model.
        relation_count: number of relations in the data, for a config that does not list them.
        workers: threads that train a bucket together (HOGWILD). Only a single one gives the same bits again.
        place: device on which buckets are trained; None: this machine's memory.
        loops: int64, ids of the relations that have loops among all edges; None: unknown, treated as none.

    Attributes:
        loops: the argument.
        step_lock: lock around every step; None: no other thread changes the shared parameters.
        ranked_alone: number of ranks of all evaluations that had no negative.

    Raises:
        ConfigError: the config needs a feature that this engine lacks.
    """

    name: ClassVar[str]

    def __init__(
        self,
        config: ModelConfig,
        relation_count: int,
        *,
        workers: int = 1,
        place: Host | None = None,
        loops: np.ndarray | None = None,
    ) -> None:
        torch.set_num_threads(1)  # the products are too small for a second thread to help
        use_fast_float32()
        keep_freed_memory()
        self.config, self.workers = config, workers
        self.place = Host() if place is None else place
        self.families, self.loops = Families(config, relation_count), loops
        self.selves = SelfNegatives(config, self.families, loops, self.place.device)
        self.shared = SharedParameters(config, relation_count, self.place.device)
        self._model = Model(config, self.shared.values, comparator(config.comparator, bias=config.bias))
        self.step_lock: StepGuard | None = None
        self.ranked_alone = 0
        self._several = 1  # batches that the engine trains as one
        self._workspaces = [Workspace() for _ in range(workers)]

    def load_parameters(self, params: Mapping[str, np.ndarray], sums: Mapping[str, np.ndarray]) -> None:
        """Load stored shared parameters; relations that came since keep their start."""
        self.shared.load(params, sums)

    def parameters(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the shared parameters and their Adagrad sums by PBG's path."""
        return self.shared.arrays()

    def train_bucket(
        self,
        edges: EdgeList,
        lhs: Mapping[str, Table],
        rhs: Mapping[str, Table],
        pace: Pace = STEADY,
        *,
        generator: torch.Generator,
        on_batch: Callable[[int, float], None] | None = None,
        begun: Position = NOTHING,
        stop: Callable[[], bool] | None = None,
    ) -> tuple[BucketStats, Position]:
        """Train the remaining batches of a bucket, until ``stop`` ends it.

        With one worker, a bucket that is trained in parts ends with the same bits as one that is trained at once.

        Args:
            edges: edges of the whole bucket, offsets into the tables.
            lhs: tables of the left-hand side by entity type.
            rhs: tables of the right-hand side; the same object where it is the same partition.
            pace: of the whole bucket.
            generator: determines order and negatives; seeded as at the beginning of the bucket.
            on_batch: called now and then with the number of edges since the last call and their mean loss.
            begun: the part that was trained before.
            stop: called before each batch; after it returns True, only the batches under way are finished.

        Returns:
            Figures of the edges trained now, and the trained part of the bucket.

        Raises:
            FormatError: an edge names a missing relation or entity; nothing was trained.
            TrainingDivergedError: the loss or a row is not finite.
        """
        started = time.perf_counter()
        check_edges(edges, self.config, self.families, lhs, rhs)
        counters = StepCounters(len(edges), on_batch, self.place, begun=begun.edges)
        with self.place.hold(lhs, rhs, trained=True) as (there_lhs, there_rhs):
            draws = self._train(edges, there_lhs, there_rhs, counters, generator, pace, Limits(begun, stop))
        stats = counters.stats(time.perf_counter() - started)
        if not math.isfinite(stats.reg):
            raise TrainingDivergedError(f"the penalty of the regularizer is {stats.reg}; try a smaller lr")
        drawn = state_of(draws) if self.workers == 1 else ""
        return stats, Position(begun.batches + counters.batches, counters.count, drawn)

    def _train(
        self,
        edges: EdgeList,
        lhs: Mapping[str, Table],
        rhs: Mapping[str, Table],
        counters: StepCounters,
        generator: torch.Generator,
        pace: Pace,
        limits: Limits,
    ) -> torch.Generator:
        """Train a bucket whose tables are on the device.

        Returns:
            The first worker's generator of negatives.
        """
        begun, stop = limits
        # Before the workers' generators, since the rank that continues the bucket may have another number of workers.
        cut = batches(
            edges, self.config, self.families, generator, self._edge_source, skip=begun.batches, at_once=self._at_once
        )
        generators = [self.place.generator(each) for each in (generator, *forked(generator, self.workers - 1))]
        if begun.drawn and self.workers == 1:
            restore(generators[0], begun.drawn)
        samplers = bucket_samplers(self.config, self.families, generators, edges, {"lhs": lhs, "rhs": rhs})
        known = KnownEdges(edges) if self.config.mask_known_negatives else None

        def work(worker: int, item: tuple[int, Batch]) -> None:
            number, batch = item
            trained, steps = counters.count, range(0, len(batch), self.config.batch_size)  # others count meanwhile
            rates = [1.0 if pace.rate is None else pace.rate((trained + begin) / len(edges)) for begin in steps]
            with nullcontext() if (lock := self.step_lock) is None else lock.step():
                figures = self.step(batch, lhs, rhs, samplers[worker], known=known, rates=rates, worker=worker)
            loss = counters.add(len(batch), figures, Stretch(number - len(steps) + 1, number, {batch.relation}))
            if loss is not None and counters.diverged is not None:
                self._refuse(loss, counters.diverged)

        if stop is not None:
            cut = takewhile(lambda _: not stop(), cut)
        work_off(self._numbered(cut, begun.batches), self.workers, work, delay=pace.delay)
        check_trained(self.config, self.shared, lhs, rhs)
        return generators[0]

    def evaluate(
        self,
        edges: EdgeList,
        lhs: Mapping[str, Table],
        rhs: Mapping[str, Table],
        *,
        generator: torch.Generator,
        check: Callable[[], None] = lambda: None,
    ) -> EvalStats:
        """Rank edges among the negatives of the evaluation (``eval_num_*``).

        PBG does so during training.

        All workers rank. The figures do not depend on their number: random numbers are drawn in the order of the
        batches, and the results are added in that order.

        Args:
            edges: offsets into the tables.
            lhs: tables of the left-hand side by entity type.
            rhs: tables of the right-hand side.
            generator: draws the negatives.
            check: called before each batch; an exception that it raises ends the evaluation.

        Raises:
            FormatError: an edge names a missing relation or entity.
            TrainingDivergedError: the loss is not finite.
        """
        check_edges(edges, self.config, self.families, lhs, rhs)
        config = evaluation_config(self.config)
        model = replace(self._model, config=config)
        found: dict[int, tuple[Tensor, Tensor]] = {}

        def work(worker: int, item: HeldOutBatch) -> None:
            workspace, observe = self._workspaces[worker], item.ranking.add
            step = Step(model, item.batch, item.tables, item.drawn, workspace, observe, train=False)
            found[item.number] = item.ranking.sums, step.figures.loss

        with self.place.hold(lhs, rhs, trained=False) as (there_lhs, there_rhs):
            items = self._held_out(edges, config, there_lhs, there_rhs, generator, check)
            work_off(items, self.workers, work)
        ranking, loss = Ranking.start(generator), torch.zeros((), device=self.place.device)
        for number in range(len(found)):
            sums, of_batch = found[number]
            ranking.join(sums)
            loss = loss + of_batch
        if not math.isfinite(float(loss)):
            raise TrainingDivergedError(f"held-out edges: the loss is {float(loss)}; try a smaller lr, or set max_norm")
        self.ranked_alone += ranking.alone
        return ranking.stats(len(edges), float(loss))

    def _held_out(
        self,
        edges: EdgeList,
        config: ModelConfig,
        lhs: Mapping[str, Table],
        rhs: Mapping[str, Table],
        generator: torch.Generator,
        check: Callable[[], None],
    ) -> Iterator[HeldOutBatch]:
        """Yield held-out edges batch by batch, with their negatives."""
        sampler = UniformSampler(generator)
        for number, batch in enumerate(batches(edges, config, self.families, generator, self._edge_source)):
            check()
            tables = self._tables(batch, lhs, rhs)
            drawn = self._draw(config, batch, tables, sampler)
            (own,) = forked(generator, 1)
            yield HeldOutBatch(number, batch, tables, drawn, Ranking.start(own))

    def step(
        self,
        batch: Batch,
        lhs: Mapping[str, Table],
        rhs: Mapping[str, Table],
        sampler: NegativeSampler,
        observe: Observer | None = None,
        *,
        known: KnownEdges | None = None,
        rates: Sequence[float] = (1.0,),
        worker: int = 0,
    ) -> Figures:
        """Train a batch, or several that were made as one.

        Args:
            batch: the edges.
            lhs: tables of the left-hand side by entity type.
            rhs: tables of the right-hand side.
            sampler: draws negatives.
            observe: called with the scores of each side.
            known: edges that must not serve as negatives.
            rates: factors of the learning rates, one for each step; several: the batch is as many of ``batch_size``
                edges.
            worker: number of the worker whose memory is used.
        """
        tables = self._tables(batch, lhs, rhs)
        return self._step(StepInput(batch, tables, sampler, observe, known, rates, worker))

    @abstractmethod
    def _step(self, given: StepInput) -> Figures:
        """Train one batch."""

    def _at_once(self, number: int, left: int) -> int:
        """Return the number of batches to train as one."""
        if self.step_lock is not None:
            return 1  # the other thread waits for all of them
        several = min(self._several, CHECK_EVERY - number % CHECK_EVERY)
        return several if self.workers == 1 else min(several, max(1, left // (2 * self.workers)))

    def _numbered(self, cut: Iterator[Batch], number: int) -> Iterator[tuple[int, Batch]]:
        """Yield batches with the numbers of their last steps."""
        for batch in cut:
            number += -(-len(batch) // self.config.batch_size)
            yield number, batch

    def _edge_source(self, edges: EdgeList, order: np.ndarray, config: ModelConfig, families: Families) -> EdgeSource:
        """Return the source of a bucket's batches."""
        return GatheredEdges(edges, order, config, families)

    def _draw(
        self, config: ModelConfig, batch: Batch, tables: Mapping[Side, Table], sampler: NegativeSampler
    ) -> dict[Side, torch.Tensor]:
        """Return a batch's negatives, on the device."""
        relation = config.relations[batch.relation]
        entities = {side: len(table) for side, table in tables.items()}
        drawn = draw_negatives(config, relation, chunk_plan(config, relation, len(batch)), entities, sampler)
        if sampler.generator.device == self.place.device:
            return drawn
        return {side: self.place.put(rows_N) for side, rows_N in drawn.items()}

    def _tables(self, batch: Batch, lhs: Mapping[str, Table], rhs: Mapping[str, Table]) -> dict[Side, Table]:
        relation = self.config.relations[batch.relation]
        return {"lhs": lhs[relation.lhs], "rhs": rhs[relation.rhs]}

    def _refuse(self, loss: float, batches: Stretch) -> NoReturn:
        first, last = batches.first, batches.last
        relations = sorted(batches.relations)
        where = f"batch {last}" if first == last else f"one of the batches {first} to {last}"
        if not self.config.dynamic_relations and len(relations) == 1:
            where = f"relation {self.config.relations[relations[0]].name!r}, {where}"
        raise TrainingDivergedError(f"{where}: the loss is {loss}; try a smaller lr, or set max_norm")
