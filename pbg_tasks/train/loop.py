"""The training loop: iterations over buckets, one commit an iteration (PBG's train_cpu, single rank).

An iteration is one (epoch, edge path, edge chunk); its number is the checkpoint version it commits. Whatever happens
between two commits, the next start continues from the last one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pbg_tasks.checkpoint import ObjectRecord, StatsMirror, preserve, preserved_prefix
from pbg_tasks.errors import ConfigError, FormatError, TrainingDivergedError
from pbg_tasks.formats.directory import BucketStats, EvalStats, iteration_line, stats_line
from pbg_tasks.formats.edges import edge_file_name
from pbg_tasks.formats.embeddings import IterationInfo
from pbg_tasks.formats.model import ModelState, model_file_name, write_model
from pbg_tasks.progress import Progress, human_count, human_seconds, say
from pbg_tasks.train.held_out import split_off
from pbg_tasks.train.iterations import chunk_bounds, chunk_count, iterations
from pbg_tasks.train.partitions import PartitionBuffer
from pbg_tasks.train.rates import rate_factor
from pbg_tasks.train.schedule import Bucket, bucket_order, grid
from pbg_tasks.train.source import seeded

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointWriter, Iteration, Manifest
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.train.engine_torch import TorchEngine
    from pbg_tasks.train.source import StartingPoint

BucketResult = tuple[BucketStats, EvalStats | None, EvalStats | None]
"""Figures of a bucket's training, and of its held-out edges before and after."""


class EdgeFiles(Protocol):
    """The buckets of every edge path."""

    def count(self, edge_path_idx: int, bucket: Bucket) -> int:
        """Return how many edges a bucket holds."""
        ...

    def read(self, edge_path_idx: int, bucket: Bucket, start: int, stop: int) -> EdgeList:
        """Return edges ``start`` to ``stop`` of a bucket."""
        ...


@dataclass(frozen=True, slots=True)
class EpochFigures:
    """What one iteration did.

    Attributes:
        epoch: from 0.
        loss: per trained edge, both sides.
        edges: trained.
        seconds: it took, with reading and writing.
        held_out: figures of the edges held out by ``eval_fraction``, after training.
    """

    epoch: int
    loss: float
    edges: int
    seconds: float
    held_out: EvalStats | None = None


class Trainer:
    """Trains from the last commit to the end.

    Args:
        config: PBG's config, paths included.
        engine: does a bucket.
        edges: the edges.
        start: where embeddings and parameters come from.
        writer: the claimed checkpoint directory.
        seed: with the bucket and iteration it fixes every random choice.
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
        buckets = grid(config.partitions("lhs"), config.partitions("rhs"))
        paths = range(len(config.edge_paths))
        self.chunks = chunk_count(config, max((edges.count(path, b) for path in paths for b in buckets), default=0))
        done = writer.manifest.iteration if writer.manifest else None
        if done is None:  # PBG's version has no manifest; its number tells the iteration
            done = next((step for step in iterations(config, self.chunks) if step.number == writer.version), None)
        self.stats = StatsMirror(writer.store, writer.prefix, done)
        state = start.model(ModelState(*engine.parameters()))
        self._done: Iteration | IterationInfo | None = done
        if writer.manifest is None:  # PBG's version says in its files what it was trained on
            self._done = start.iteration if writer.version else None
        self._plan = list(iterations(config, self.chunks))
        self._check_resumable()
        if state is not None:
            engine.load_parameters(state.params, state.sums)

    def run(self) -> list[EpochFigures]:
        """Train what is left and commit each iteration.

        Returns:
            The figures of the iterations trained now (none when all were done before).

        Raises:
            ConfigError: what is committed was trained with another number of edge paths or chunks.
            TrainingDivergedError: a loss or an embedding is not finite; that iteration is not committed.
            ConflictError: another writer took the run over.
        """
        plan = self._plan
        if not plan and self.writer.manifest is None and not self.writer.version:
            self._commit(None, self._untrained(), edges=0)
        left = plan[self.writer.version :]
        if self.writer.version:
            say(
                f"resuming after version {self.writer.version} of {len(plan)}"
                if left
                else f"all {len(plan)} iterations were done before; raise num_epochs to train on"
            )
        figures = []
        for iteration in left:
            figures.append(self._iterate(iteration, len(plan)))
            self._report(figures, len(left))
        return figures

    def _check_resumable(self) -> None:
        """A version counts iterations: with other edge paths or chunks it would stand for other edges."""
        done = self._done
        if done is None or not self._plan:
            return
        if (done.num_edge_paths, done.num_edge_chunks) != (len(self.config.edge_paths), self.chunks):
            raise ConfigError(
                f"{self.writer.store.url}: version {self.writer.version} was made with {done.num_edge_paths} "
                f"edge_paths and num_edge_chunks {done.num_edge_chunks}, now they are {len(self.config.edge_paths)} "
                f"and {self.chunks}; resume with the config it was trained with"
            )

    def _report(self, figures: list[EpochFigures], total: int) -> None:
        last, ahead = figures[-1], total - len(figures)
        rest = sum(figure.seconds for figure in figures) / len(figures) * ahead
        rate = human_count(last.edges / max(last.seconds, 1e-9))
        held_out = "" if last.held_out is None else f", held-out MRR {last.held_out.mrr:.4f}"
        say(
            f"epoch {last.epoch + 1}/{self.config.num_epochs} committed: loss {last.loss:.4f}{held_out}, "
            f"{rate} edges/s, {human_seconds(last.seconds)}; ETA {human_seconds(rest)}"
        )

    def _iterate(self, iteration: Iteration, planned: int) -> EpochFigures:
        started = time.monotonic()
        info = self._info(iteration)
        order = bucket_order(
            self.config.bucket_order,
            self.config.partitions("lhs"),
            self.config.partitions("rhs"),
            seed=f"{self.seed}/order/{iteration.number}",
        )
        sizes = {bucket: self._slice(iteration, bucket) for bucket in order}
        total = sum(stop - start for start, stop in sizes.values())
        results, lines, seen = [], [], 0
        with Progress(f"epoch {iteration.epoch_idx + 1}/{iteration.num_epochs}", total=total) as progress:
            for index, bucket in enumerate(order):
                start, stop = sizes[bucket]
                begin, end = (
                    (iteration.number - 1 + edges / max(total, 1)) / planned for edges in (seen, seen + stop - start)
                )
                result = self._train_bucket(iteration, bucket, info, progress, (begin, end))
                seen += stop - start
                results.append(result)
                position = (iteration.number - 1) * len(order) + index
                stats, before, after = result
                lines.append(stats_line(stats, *bucket, position, info, before=before, after=after))
        self._check_ledger(results, total)
        trained = sum(stats.count for stats, _, _ in results)
        loss = sum(stats.loss * stats.count for stats, _, _ in results) / max(trained, 1)
        held_out = [after for _, _, after in results if after is not None]
        average = EvalStats.mean(held_out) if held_out else None
        if average is not None:
            lines.append(iteration_line(average, iteration.number * len(order) - 1, info))
        self._commit(iteration, info, edges=trained, lines=lines)
        return EpochFigures(iteration.epoch_idx, loss, trained, time.monotonic() - started, average)

    def _slice(self, iteration: Iteration, bucket: Bucket) -> tuple[int, int]:
        count = self.edges.count(iteration.edge_path_idx, bucket)
        return chunk_bounds(count, iteration.edge_chunk_idx, iteration.num_edge_chunks)

    def _train_bucket(
        self, iteration: Iteration, bucket: Bucket, info: IterationInfo, progress: Progress, reach: tuple[float, float]
    ) -> BucketResult:
        """Train a bucket's chunk and rank its held-out edges before and after.

        ``reach`` is from where to where in the whole training, 0 to 1, the chunk takes it.
        """
        lhs, rhs = self.buffer.swap_to(bucket, iteration.number, info)
        edges = self.edges.read(iteration.edge_path_idx, bucket, *self._slice(iteration, bucket))
        place = (iteration.edge_path_idx, iteration.edge_chunk_idx, *bucket)
        edges, held_out = split_off(edges, self.config.eval_fraction, seeded(self.seed, "held out", *place))

        def evaluated() -> EvalStats | None:
            generator = seeded(self.seed, "evaluation", *place)
            return self.engine.evaluate(held_out, lhs, rhs, generator=generator) if len(held_out) else None

        begin, end = reach
        try:
            before = evaluated()
            stats = self.engine.train_bucket(
                edges,
                lhs,
                rhs,
                generator=seeded(self.seed, "bucket", iteration.number, *bucket),
                rate=lambda share: rate_factor(self.config, begin + (end - begin) * share),
                delay=self.config.hogwild_delay if iteration.epoch_idx == 0 else 0.0,
                on_batch=lambda count, loss: progress.advance(count, loss=loss),
            )
            progress.advance(len(held_out))
            return stats, before, evaluated()
        except FormatError as error:
            path = f"{self.config.edge_paths[iteration.edge_path_idx]}/{edge_file_name(*bucket)}"
            raise FormatError(f"{path}: {error}") from None
        except TrainingDivergedError as error:
            raise TrainingDivergedError(
                f"epoch {iteration.epoch_idx + 1}, bucket ({bucket.lhs}, {bucket.rhs}): {error}; "
                f"version {self.writer.version} stays the newest"
            ) from None

    def _check_ledger(self, results: list[BucketResult], total: int) -> None:
        """Every edge of the iteration's chunk was trained exactly once or held out, or nothing is committed."""
        done = sum(stats.count + (after.count if after else 0) for stats, _, after in results)
        if done != total:
            raise RuntimeError(f"trained or held out {done} edges where the buckets hold {total}: a bug")

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
        return IterationInfo(0, 0, len(self.config.edge_paths), 0, (*self.config.edge_paths, "")[0], self.chunks, 0)
