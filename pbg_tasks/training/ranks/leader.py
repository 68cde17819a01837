"""Duties of rank 0 besides training: it begins iterations and commits them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import StoredObject
from pbg_tasks.formats.directory import IoStats
from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.progress import human_count, say
from pbg_tasks.training.commits import Commits, check_ledger
from pbg_tasks.training.data.partitions import Layout, partition_keys
from pbg_tasks.training.schedule import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pbg_tasks.checkpoint import CheckpointWriter, Iteration, ObjectRecord
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.training.data.edge_files import EdgeChunk
    from pbg_tasks.training.data.partitions import PartitionKey
    from pbg_tasks.training.iteration_plan import IterationPlan
    from pbg_tasks.training.ranks.coordinator import Coordinator
    from pbg_tasks.training.ranks.partitions.partition_store import PartitionStore
    from pbg_tasks.training.starting_point import StartingPoint


class Leader:
    """Begin and commit of iterations.

    Args:
        config: PBG's config.
        coordinator: of the gang.
        writer: the claimed checkpoint directory.
        iteration_plan: of the training.
        partition_store: rank 0's.
        start: gives the partitions that no bucket needs.
        world: number of trainers.

    Attributes:
        commits: of this gang.
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
        self.commits = Commits(writer, iteration_plan, drop=writer.drop)
        self._config, self._coordinator = config, coordinator
        self._writer = writer
        self._order, self._partition_store = iteration_plan.order, partition_store
        self._start, self._world = start, world
        self._began = 0.0

    @property
    def record(self) -> dict[str, StoredObject]:
        """Shared parameters that another gang has stored of the next iteration."""
        return dict(self._writer.progress.shared) if self._writer.progress else {}

    def begin(self, iteration: Iteration, edge_chunks: Sequence[EdgeChunk]) -> None:
        """Begin an iteration, or continue it."""
        self._began = time.monotonic()
        self._coordinator.begin(iteration, edge_chunks, self._order)
        found = self._coordinator.state
        if found.done or found.seen:
            say(
                f"epoch {iteration.epoch_idx + 1}/{iteration.num_epochs}: going on after {len(found.done)} of "
                f"{len(edge_chunks)} buckets; {human_count(found.seen)} edges of it are stored, "
                f"{human_count(found.retrained)} were lost on the way or may have been, and are trained again"
            )

    def wait_shared(self, seconds: float) -> None:
        """Wait so many seconds for the shared state to be stored."""
        self._coordinator.wait_shared(seconds)

    def commit(self, iteration: Iteration, draw: Callable[[], None] | None = None) -> None:
        """Make a version of the files that the gang has stored.

        Args:
            iteration: that is trained.
            draw: changes the shared state for the version.

        Raises:
            ConflictError: another writer has claimed the directory.
        """
        found = self._coordinator.state
        earlier = found.earlier
        check_ledger(found.done, found.edges)
        objects = self._coordinator.settle(draw) | self._unneeded(iteration)
        seconds = time.monotonic() - self._began
        before = sum(edge_chunk.seconds for edge_chunk in earlier)
        training = (sum(edge_chunk.seconds for edge_chunk in found.done) - before) / self._world
        io = IoStats(seconds, max(0.0, seconds - training))
        over = self.commits.commit(iteration, found.done, objects, retrained=found.retrained, earlier=earlier, io=io)
        self._coordinator.over = over

    def _unneeded(self, iteration: Iteration) -> dict[str, ObjectRecord]:
        """Store the partitions of types without a relation.

        A version has files of every type.
        """
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
