"""What rank 0 does besides training: begins iterations and commits them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import StatsMirror, StoredObject
from pbg_tasks.formats.directory import EvalStats, IoStats, io_line, iteration_line, stats_line
from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.progress import human_count, human_seconds, say
from pbg_tasks.train.data.partitions import Layout, partition_keys
from pbg_tasks.train.edge_chunk_records import bucket_stats, eval_stats
from pbg_tasks.train.loop import EpochFigures
from pbg_tasks.train.schedule import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pbg_tasks.checkpoint import CheckpointWriter, Iteration, ObjectRecord
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.train.data.edge_files import EdgeChunk
    from pbg_tasks.train.data.partitions import PartitionKey
    from pbg_tasks.train.iteration_plan import IterationPlan
    from pbg_tasks.train.ranks.coordinator import Coordinator
    from pbg_tasks.train.ranks.iteration_state import IterationState
    from pbg_tasks.train.ranks.partitions.partition_store import PartitionStore
    from pbg_tasks.train.starting_point import StartingPoint


class Leader:
    """Begins and commits iterations.

    Args:
        config: PBG's config.
        coordinator: of the gang.
        writer: the claimed checkpoint directory.
        iteration_plan: of the training.
        partition_store: rank 0's.
        start: where what no bucket needs comes from.
        world: trainers.

    Attributes:
        figures: of the iterations committed now.
        stats: the lines of all iterations.
    """

    def __init__(
        self,
        config: ConfigSchema,
        coordinator: Coordinator,
        writer: CheckpointWriter,
        *,
        iteration_plan: IterationPlan,
        partition_store: PartitionStore,
        start: StartingPoint,
        world: int,
    ) -> None:
        self.figures: list[EpochFigures] = []
        self.stats = StatsMirror(writer.store, writer.prefix, iteration_plan.done(writer))
        self._config, self._coordinator, self._writer = config, coordinator, writer
        self._iteration_plan, self._partition_store, self._start, self._world = (
            iteration_plan,
            partition_store,
            start,
            world,
        )
        self._began = 0.0

    @property
    def record(self) -> dict[str, StoredObject]:
        """The shared parameters that another gang has stored of the iteration that comes next."""
        return dict(self._writer.progress.shared) if self._writer.progress else {}

    def begin(self, iteration: Iteration, edge_chunks: Sequence[EdgeChunk]) -> None:
        """Begin an iteration, or go on with it."""
        self._began = time.monotonic()
        self._coordinator.begin(iteration, edge_chunks, self._iteration_plan.order)
        found = self._coordinator.state
        if found.done or found.seen:
            say(
                f"epoch {iteration.epoch_idx + 1}/{iteration.num_epochs}: going on after {len(found.done)} of "
                f"{len(edge_chunks)} buckets; {human_count(found.seen)} edges of it are stored, "
                f"{human_count(found.retrained)} were lost on the way or may have been, and are trained again"
            )

    def wait_shared(self, seconds: float) -> None:
        """Wait until what all share is stored for those who will resume, so many seconds at most."""
        self._coordinator.wait_shared(seconds)

    def commit(self, iteration: Iteration, draw: Callable[[], None] | None = None) -> None:
        """Make a version of what the gang has stored.

        Args:
            iteration: that is trained.
            draw: changes what all share for the version.

        Raises:
            ConflictError: another writer has claimed the directory.
        """
        found, before = self._coordinator.state, self._writer.manifest
        if found.seen != found.edges:
            raise RuntimeError(f"trained or held out {found.seen} edges where the buckets hold {found.edges}: a bug")
        objects = self._coordinator.settle(draw) | self._unneeded(iteration)
        trained = sum(edge_chunk.edges for edge_chunk in found.done)
        figures = self._figures(iteration, found, trained)
        self.stats.append(self._lines(iteration, found, figures))
        valid = self._iteration_plan.figure(iteration, figures.held_out)
        manifest = self._writer.commit(
            objects, iteration=iteration, edges=trained, retrained=found.retrained, valid=valid
        )
        self._coordinator.over = self._iteration_plan.stops(manifest)
        self._iteration_plan.preserve(self._writer, iteration, manifest)
        if before is not None:
            self._writer.drop(before)
        self.figures.append(figures)
        say(
            f"epoch {iteration.epoch_idx + 1}/{iteration.num_epochs} committed: loss {figures.loss:.4f}, "
            f"{human_count(trained / max(figures.seconds, 1e-9))} edges/s, {human_seconds(figures.seconds)}"
        )

    def _figures(self, iteration: Iteration, found: IterationState, trained: int) -> EpochFigures:
        stats = [bucket_stats(edge_chunk) for edge_chunk in found.done]
        held_out = [after for edge_chunk in found.done if (after := eval_stats(edge_chunk.after)) is not None]
        seconds = time.monotonic() - self._began
        return EpochFigures(
            iteration.epoch_idx,
            loss=sum(each.loss * each.count for each in stats) / max(trained, 1),
            edges=trained,
            seconds=seconds,
            waited=max(0.0, seconds - sum(each.seconds for each in stats) / self._world),
            held_out=EvalStats.mean(held_out) if held_out else None,
        )

    def _lines(self, iteration: Iteration, found: IterationState, figures: EpochFigures) -> list[str]:
        info, first = self._iteration_plan.info(iteration), (iteration.number - 1) * len(found.done)
        lines = [
            stats_line(
                bucket_stats(edge_chunk),
                *Bucket(edge_chunk.lhs, edge_chunk.rhs),
                index,
                info,
                before=eval_stats(edge_chunk.before),
                after=eval_stats(edge_chunk.after),
            )
            for index, edge_chunk in enumerate(found.done, start=first)
        ]
        if figures.held_out is not None:
            lines.append(iteration_line(figures.held_out, first + len(lines) - 1, info))
        return [*lines, io_line(IoStats(figures.seconds, figures.waited), info)]

    def _unneeded(self, iteration: Iteration) -> dict[str, ObjectRecord]:
        """Store the partitions of types that no relation names: a version has files of every type."""
        used = {key.entity for key in Layout(self._config).needs(Bucket(0, 0))}
        keys = [key for key in partition_keys(self._config) if key.entity not in used]
        return dict(
            self._rewrite(key, iteration) for key in keys if self._config.entities[key.entity].num_partitions > 1
        )

    def _rewrite(self, key: PartitionKey, iteration: Iteration) -> tuple[str, ObjectRecord]:
        manifest = self._writer.manifest
        before = embeddings_file_name(*key, iteration.number - 1)
        if manifest is None or before not in manifest.objects:
            table = self._start.table(key)
        else:
            table = self._partition_store.get(StoredObject(name=before, record=manifest.objects[before]))
        with self._partition_store.written(key, table, "unneeded") as path:
            return path.name, self._writer.put(path.name, path)
