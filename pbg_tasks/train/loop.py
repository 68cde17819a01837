"""The training loop: iterations over buckets, one commit an iteration (PBG's train_cpu, single rank).

An iteration is one (epoch, edge path, edge chunk); its number is the checkpoint version it commits. Whatever happens
between two commits, the next start continues from the last one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pbg_tasks.checkpoint import Iteration, ObjectRecord, StatsMirror, preserve, preserved_prefix
from pbg_tasks.errors import ConfigError, TrainingDivergedError
from pbg_tasks.formats.directory import BucketStats, stats_line
from pbg_tasks.formats.edges import count_edges, read_edges
from pbg_tasks.formats.embeddings import IterationInfo
from pbg_tasks.formats.model import ModelState, model_file_name, write_model
from pbg_tasks.progress import Progress, human_count, human_seconds, say
from pbg_tasks.train.partitions import PartitionBuffer
from pbg_tasks.train.schedule import Bucket, bucket_order
from pbg_tasks.train.source import seeded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointWriter, Manifest
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.train.engine_torch import TorchEngine
    from pbg_tasks.train.source import StartingPoint


class EdgeFiles(Protocol):
    """The edge files of every edge path, brought to local disk when asked for."""

    def path(self, edge_path_idx: int, bucket: Bucket) -> Path:
        """Return the local file of one bucket."""
        ...

    def count(self, edge_path_idx: int) -> int:
        """Return how many edges an edge path holds."""
        ...

    def largest_bucket(self) -> int:
        """Return the number of edges of the largest bucket of all edge paths."""
        ...


@dataclass(frozen=True, slots=True)
class EpochFigures:
    """What one iteration did: its loss per edge (both sides), edges and seconds of training."""

    epoch: int
    loss: float
    edges: int
    seconds: float


def iterations(config: ConfigSchema, chunks: int) -> Iterator[Iteration]:
    """Yield all iterations of a training, in order."""
    paths = len(config.edge_paths)
    number = 0
    for epoch in range(config.num_epochs):
        for path in range(paths):
            for chunk in range(chunks):
                number += 1
                yield Iteration(
                    number=number,
                    epoch_idx=epoch,
                    num_epochs=config.num_epochs,
                    edge_path_idx=path,
                    num_edge_paths=paths,
                    edge_chunk_idx=chunk,
                    num_edge_chunks=chunks,
                )


def chunk_count(config: ConfigSchema, largest_bucket: int) -> int:
    """Return ``num_edge_chunks``, or what keeps the largest bucket's chunk within ``max_edges_per_chunk``."""
    return config.num_edge_chunks or max(1, -(-largest_bucket // config.max_edges_per_chunk))


def chunk_bounds(edges: int, chunk: int, chunks: int) -> tuple[int, int]:
    """Return the slice of a bucket that is chunk ``chunk``; chunks differ by one edge at most, some may be empty."""
    return edges * chunk // chunks, edges * (chunk + 1) // chunks


class Trainer:
    """Trains a run from its last commit to its end.

    Args:
        config: PBG's config, paths included.
        engine: does a bucket.
        edges: the edge files.
        start: where embeddings and parameters come from.
        writer: the claimed checkpoint directory.
        seed: of the run; with the bucket and iteration it fixes every random choice.
        scratch: local directory for partition files.
    """

    def __init__(
        self,
        config: ConfigSchema,
        *,
        engine: TorchEngine,
        edges: EdgeFiles,
        start: StartingPoint,
        writer: CheckpointWriter,
        seed: int,
        scratch: Path,
    ) -> None:
        self.config, self.engine, self.edges, self.writer, self.seed = config, engine, edges, writer, seed
        self.scratch = scratch
        self.buffer = PartitionBuffer(config, start, scratch)
        self.chunks = chunk_count(config, edges.largest_bucket())
        done = writer.manifest.iteration if writer.manifest else None
        self.stats = StatsMirror(writer.store, writer.prefix, done)
        state = start.model()
        if state is not None:
            engine.load_parameters(state.params, state.sums)

    def run(self) -> list[EpochFigures]:
        """Train what is left and commit each iteration.

        Returns:
            The figures of the iterations trained now (none when all were done before).

        Raises:
            TrainingDivergedError: a loss or an embedding is not finite; that iteration is not committed.
            ConflictError: another writer took the run over.
        """
        plan = list(iterations(self.config, self.chunks))
        done = self.writer.manifest.iteration if self.writer.manifest else None
        if done is not None and (len(plan) < done.number or plan[done.number - 1] != done):
            raise ConfigError(
                f"{self.writer.prefix}: version {done.number} was committed with another num_epochs, "
                "number of edge_paths or num_edge_chunks; resume with the config it was trained with"
            )
        if not plan and self.writer.manifest is None:
            self._commit(None, self._untrained(), edges=0)
        left = plan[self.writer.version :]
        if self.writer.version and left:
            say(f"resuming after version {self.writer.version} of {len(plan)}")
        figures = []
        for iteration in left:
            figures.append(self._iterate(iteration))
            self._report(figures, len(left))
        return figures

    def _report(self, figures: list[EpochFigures], total: int) -> None:
        last, ahead = figures[-1], total - len(figures)
        rest = sum(figure.seconds for figure in figures) / len(figures) * ahead
        rate = human_count(last.edges / max(last.seconds, 1e-9))
        say(
            f"epoch {last.epoch + 1}/{self.config.num_epochs} committed: loss {last.loss:.4f}, {rate} edges/s, "
            f"{human_seconds(last.seconds)}; ETA {human_seconds(rest)}"
        )

    def _iterate(self, iteration: Iteration) -> EpochFigures:
        started = time.monotonic()
        info = self._info(iteration)
        order = bucket_order(
            self.config.bucket_order,
            self.config.partitions("lhs"),
            self.config.partitions("rhs"),
            seed=f"{self.seed}/order/{iteration.number}",
        )
        loss, edges, lines = 0.0, 0, []
        what = f"epoch {iteration.epoch_idx + 1}/{iteration.num_epochs}"
        total = self.edges.count(iteration.edge_path_idx) // iteration.num_edge_chunks
        with Progress(what, total=total) as progress:
            for index, bucket in enumerate(order):
                stats = self._train_bucket(iteration, bucket, info, progress)
                loss += stats.loss * stats.count
                edges += stats.count
                position = (iteration.number - 1) * len(order) + index
                lines.append(stats_line(stats, bucket.lhs, bucket.rhs, position, info))
        self._check_ledger(iteration, order, edges)
        self._commit(iteration, info, edges=edges, lines=lines)
        seconds = time.monotonic() - started
        return EpochFigures(iteration.epoch_idx, loss / max(edges, 1), edges, seconds)

    def _train_bucket(
        self, iteration: Iteration, bucket: Bucket, info: IterationInfo, progress: Progress
    ) -> BucketStats:
        lhs, rhs = self.buffer.swap_to(bucket, iteration.number, info)
        path = self.edges.path(iteration.edge_path_idx, bucket)
        start, stop = chunk_bounds(count_edges(path), iteration.edge_chunk_idx, iteration.num_edge_chunks)
        generator = seeded(self.seed, "bucket", iteration.number, *bucket)
        try:
            return self.engine.train_bucket(
                read_edges(path, start, stop),
                lhs,
                rhs,
                generator=generator,
                on_batch=lambda count, loss: progress.advance(count, loss=loss),
            )
        except TrainingDivergedError as error:
            raise TrainingDivergedError(
                f"epoch {iteration.epoch_idx + 1}, bucket ({bucket.lhs}, {bucket.rhs}): {error}; "
                f"version {self.writer.version} stays the newest"
            ) from None

    def _check_ledger(self, iteration: Iteration, order: list[Bucket], trained: int) -> None:
        """Every edge of the iteration's chunk was trained exactly once, or nothing is committed."""
        expected = 0
        for bucket in order:
            count = count_edges(self.edges.path(iteration.edge_path_idx, bucket))
            start, stop = chunk_bounds(count, iteration.edge_chunk_idx, iteration.num_edge_chunks)
            expected += stop - start
        if trained != expected:
            raise RuntimeError(f"trained {trained} edges where the buckets hold {expected}: a bug, nothing committed")

    def _commit(
        self, iteration: Iteration | None, info: IterationInfo, *, edges: int, lines: list[str] | None = None
    ) -> None:
        version = iteration.number if iteration else 0
        before = self.writer.manifest
        paths = self.buffer.write_all(version, info)
        model = self.scratch / model_file_name(version)
        write_model(model, ModelState(*self.engine.parameters()), config=self.config, iteration=info)
        objects: dict[str, ObjectRecord] = {path.name: self.writer.put(path.name, path) for path in (*paths, model)}
        model.unlink()
        self.stats.append(lines or [])
        manifest = self.writer.commit(objects, iteration=iteration, edges=edges)
        self._preserve(iteration, manifest)
        if before is not None:
            self.writer.drop(before)

    def _preserve(self, iteration: Iteration | None, manifest: Manifest) -> None:
        interval = self.config.checkpoint_preservation_interval
        if iteration is None or interval is None:
            return
        last_of_epoch = (iteration.edge_path_idx, iteration.edge_chunk_idx) == (
            iteration.num_edge_paths - 1,
            iteration.num_edge_chunks - 1,
        )
        epoch = iteration.epoch_idx + 1
        if last_of_epoch and epoch % interval == 0:
            target = preserved_prefix(self.writer.prefix, epoch)
            preserve(self.writer.store, self.writer.prefix, manifest, target, epochs=epoch)

    def _info(self, iteration: Iteration) -> IterationInfo:
        return IterationInfo(
            num_epochs=iteration.num_epochs,
            epoch_idx=iteration.epoch_idx,
            num_edge_paths=iteration.num_edge_paths,
            edge_path_idx=iteration.edge_path_idx,
            edge_path=self.config.edge_paths[iteration.edge_path_idx],
            num_edge_chunks=iteration.num_edge_chunks,
            edge_chunk_idx=iteration.edge_chunk_idx,
        )

    def _untrained(self) -> IterationInfo:
        return IterationInfo(0, 0, len(self.config.edge_paths), 0, self.config.edge_paths[0], self.chunks, 0)
