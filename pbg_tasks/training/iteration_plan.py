"""Plan of a training: its iterations, and the edge chunks of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import is_preserved, preserve, preserved_prefix
from pbg_tasks.config.base import digest
from pbg_tasks.errors import ConfigError, ConflictError
from pbg_tasks.formats.metadata import IterationInfo
from pbg_tasks.progress import say
from pbg_tasks.training.data.edge_files import EdgeChunk
from pbg_tasks.training.data.swaps import iteration_order
from pbg_tasks.training.iterations import chunk_bounds, chunk_count, ends_epoch, iterations
from pbg_tasks.training.schedule import grid

if TYPE_CHECKING:
    from pbg_tasks.checkpoint import CheckpointWriter, Iteration, Manifest
    from pbg_tasks.config import ConfigSchema, RelationSchema
    from pbg_tasks.formats.directory import EvalStats
    from pbg_tasks.training.data.edge_files import EdgeFiles
    from pbg_tasks.training.early_stopping import EarlyStopping
    from pbg_tasks.training.starting_point import StartingPoint


class IterationPlan:
    """All iterations of a training.

    Args:
        config: PBG's config, paths included.
        edges: the edges.
        seed: decides orders.
        early_stopping: ends the training before its last epoch; None: all epochs are trained.

    Attributes:
        chunks: number of edge chunks of every bucket.
        plan: the iterations, in order.
        order: hash of the keys that decide the order of edges within an edge chunk.
    """

    def __init__(
        self, config: ConfigSchema, edges: EdgeFiles, *, seed: int, early_stopping: EarlyStopping | None = None
    ) -> None:
        self._config, self._edges = config, edges
        self._seed = seed
        self.early_stopping = early_stopping
        buckets = grid(config.partitions("lhs"), config.partitions("rhs"))
        paths = range(len(config.edge_paths))
        counts = [edges.count(path, bucket) for path in paths for bucket in buckets]
        self._counts, self._buckets = counts, len(buckets)
        self.chunks = chunk_count(config, max(counts, default=0))
        self.plan = list(iterations(config, self.chunks))
        alike = [_batch_keys(relation) for relation in config.relations]
        self.order = digest([seed, config.batch_size, config.eval_fraction, alike, counts])

    def done(self, writer: CheckpointWriter) -> Iteration | None:
        """Return the iteration of the newest version; None: nothing is trained."""
        if writer.manifest is not None:
            return writer.manifest.iteration
        # PBG's version has no manifest; its number is that of the iteration
        return next((step for step in self.plan if step.number == writer.version), None)

    def stops(self, manifest: Manifest | None) -> bool:
        """Return whether a version ends the training before its last epoch."""
        return self.early_stopping is not None and self.early_stopping.stops(manifest)

    def figure(self, iteration: Iteration, stats: EvalStats | None, before: Manifest | None) -> float | None:
        """Return the figure by which an epoch's version is compared, if any.

        There is none after epochs without one, as an earlier version of this package may have trained them: figures
        are counted as epochs.

        Args:
            iteration: that is trained.
            stats: of the edges that were ranked in it.
            before: the version before it.
        """
        if self.early_stopping is None or not self.early_stopping.size or stats is None or not ends_epoch(iteration):
            return None
        return stats.mrr if len(before.valid if before is not None else ()) == iteration.epoch_idx else None

    def check_resumable(self, writer: CheckpointWriter, start: StartingPoint) -> None:
        """Refuse to continue a version that counts other iterations.

        Args:
            writer: of the version.
            start: has returned the version's model before.

        Raises:
            ConfigError: the version was trained with another number of edge paths or chunks.
        """
        done: Iteration | IterationInfo | None = self.done(writer)
        if writer.manifest is None:  # PBG's version has the iteration in its files
            done = start.iteration if writer.version else None
        if done is None or not self.plan:
            return
        if (done.num_edge_paths, done.num_edge_chunks) != (len(self._config.edge_paths), self.chunks):
            raise ConfigError(
                f"{writer.store.url}: version {writer.version} was made with {done.num_edge_paths} "
                f"edge_paths and num_edge_chunks {done.num_edge_chunks}, now they are {len(self._config.edge_paths)} "
                f"and {self.chunks}; resume with the config it was trained with"
            )

    def edge_chunks(self, iteration: Iteration, *, scattered: bool = False) -> list[EdgeChunk]:
        """Return an iteration's edge chunks in order, one of each bucket.

        Args:
            iteration: that is trained.
            scattered: in random order instead of the config's, which is best for several ranks: with the other orders
                they compete for the same partitions.
        """
        path, chunk = iteration.edge_path_idx, iteration.edge_chunk_idx
        chunks = iteration.num_edge_chunks
        config = self._config.model_copy(update={"bucket_order": "random"}) if scattered else self._config
        return [
            EdgeChunk(path, bucket, *chunk_bounds(self._edges.count(path, bucket), chunk, chunks))
            for bucket in iteration_order(config, seed=self._seed, number=iteration.number)
        ]

    def edges(self, number: int | None = None) -> int:
        """Return the edges of all iterations, or of the first ones.

        Args:
            number: of iterations; None: all.
        """
        paths = range(len(self._config.edge_paths))
        sizes = [self._size(path, chunk) for path in paths for chunk in range(self.chunks)]
        epochs, rest = divmod(len(self.plan) if number is None else number, len(sizes))
        return epochs * sum(sizes) + sum(sizes[:rest])

    def _size(self, path: int, chunk: int) -> int:
        counts = self._counts[path * self._buckets : (path + 1) * self._buckets]
        bounds = [chunk_bounds(count, chunk, self.chunks) for count in counts]
        return sum(stop - start for start, stop in bounds)

    def reach(self, iteration: Iteration, seen: int, edge_chunk: EdgeChunk, total: int) -> tuple[float, float]:
        """Return the reach of an edge chunk.

        That is its begin and end in the whole training, from 0 to 1.

        Args:
            iteration: under way.
            seen: edges of it that were trained before.
            edge_chunk: the next one.
            total: edges of the iteration.
        """
        begin, end = (
            (iteration.number - 1 + edges / max(total, 1)) / len(self.plan) for edges in (seen, seen + edge_chunk.edges)
        )
        return begin, end

    def info(self, iteration: Iteration | None) -> IterationInfo:
        """Return the metadata of an iteration's files; None: nothing is trained."""
        if iteration is None:
            path = (*self._config.edge_paths, "")[0]
            return IterationInfo(0, 0, len(self._config.edge_paths), 0, path, self.chunks, 0)
        return IterationInfo(
            num_epochs=iteration.num_epochs,
            epoch_idx=iteration.epoch_idx,
            num_edge_paths=iteration.num_edge_paths,
            edge_path_idx=iteration.edge_path_idx,
            edge_path=self._config.edge_paths[iteration.edge_path_idx],
            num_edge_chunks=iteration.num_edge_chunks,
            edge_chunk_idx=iteration.edge_chunk_idx,
        )

    def preserve(self, writer: CheckpointWriter, iteration: Iteration, manifest: Manifest) -> None:
        """Keep a copy of a committed version, as the config asks.

        Its key is ``checkpoint_preservation_interval``.
        """
        epoch = self._preserved_epoch(iteration)
        if epoch is not None:
            target, apart = preserved_prefix(writer.prefix, epoch), writer.alternates
            preserve(writer.store, writer.prefix, manifest, target, epochs=epoch, apart=apart)

    def catch_up(self, writer: CheckpointWriter) -> None:
        """Keep the newest version's copy, where its writer ended too early.

        Where another object has the copy's name, training continues without the copy: the conflict was reported when
        the version was made.
        """
        if writer.manifest is None or writer.manifest.iteration is None:
            return
        epoch = self._preserved_epoch(writer.manifest.iteration)
        if epoch is not None and not is_preserved(writer.store, preserved_prefix(writer.prefix, epoch)):
            try:
                self.preserve(writer, writer.manifest.iteration, writer.manifest)
            except ConflictError as error:
                say(f"warning: no copy of version {writer.version} is kept: {error}")

    def _preserved_epoch(self, iteration: Iteration) -> int | None:
        """Return the epochs up to an iteration; None: no copy is kept."""
        interval = self._config.checkpoint_preservation_interval
        epoch = iteration.epoch_idx + 1
        return epoch if interval is not None and ends_epoch(iteration) and epoch % interval == 0 else None


def _batch_keys(relation: RelationSchema) -> list[float]:
    """Return the keys by which relations share a batch."""
    sides = [] if relation.lhs_weight == relation.rhs_weight == 1 else [relation.lhs_weight, relation.rhs_weight]
    return [relation.weight, relation.all_negs, *sides]
