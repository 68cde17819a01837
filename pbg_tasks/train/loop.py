"""The training loop: iterations over buckets, one commit an iteration (PBG's train_cpu, single rank).

An iteration is one (epoch, edge path, edge chunk); its number is the checkpoint version it commits. Whatever happens
between two commits, the next start continues from the last one.

Partitions, edges and uploads are read and written by three threads of their own while this one trains; only the commit,
and what comes faster than it can be read or written, makes it wait.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import StatsMirror, preserve, preserved_prefix
from pbg_tasks.errors import ConfigError, FormatError, TrainingDivergedError
from pbg_tasks.formats.directory import BucketStats, EvalStats, IoStats, iteration_line, stats_line
from pbg_tasks.formats.edges import edge_file_name
from pbg_tasks.formats.embeddings import IterationInfo
from pbg_tasks.formats.model import ModelState, model_file_name, write_model
from pbg_tasks.progress import Progress, human_count, human_seconds, say
from pbg_tasks.train.buffer import PartitionBuffer
from pbg_tasks.train.edge_files import EdgesAhead, Piece
from pbg_tasks.train.held_out import split_off
from pbg_tasks.train.iterations import chunk_bounds, chunk_count, iterations
from pbg_tasks.train.partition_files import PartitionFiles, Stamp
from pbg_tasks.train.rates import rate_factor
from pbg_tasks.train.schedule import grid
from pbg_tasks.train.source import seeded
from pbg_tasks.train.swaps import iteration_order
from pbg_tasks.train.uploads import Uploads

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointWriter, Iteration, Manifest, ObjectRecord
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.train.background import Background
    from pbg_tasks.train.edge_files import EdgeFiles
    from pbg_tasks.train.engine import Engine
    from pbg_tasks.train.source import StartingPoint

BucketResult = tuple[BucketStats, EvalStats | None, EvalStats | None]
"""Figures of a bucket's training, and of its held-out edges before and after."""


@dataclass(frozen=True, slots=True)
class EpochFigures:
    """What one iteration did.

    Attributes:
        epoch: from 0.
        loss: per trained edge, both sides.
        edges: trained.
        seconds: it took, with reading and writing.
        waited: seconds of them in which nothing was trained, because something had to be read or written first.
        held_out: figures of the edges held out by ``eval_fraction``, after training.
    """

    epoch: int
    loss: float
    edges: int
    seconds: float
    waited: float
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
        engine: Engine,
        edges: EdgeFiles,
        start: StartingPoint,
        writer: CheckpointWriter,
        seed: int,
        scratch: Path,
    ) -> None:
        self.config, self.engine, self.edges, self.writer, self.seed = config, engine, edges, writer, seed
        self.scratch = scratch
        self.uploads = Uploads(writer)
        self.buffer = PartitionBuffer(config, start, PartitionFiles(config, scratch), on_final=self.uploads.add)
        self.ahead = EdgesAhead(edges)
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
        left = plan[self.writer.version :]
        if self.writer.version:
            say(
                f"resuming after version {self.writer.version} of {len(plan)}"
                if left
                else f"all {len(plan)} iterations were done before; raise num_epochs to train on"
            )
        figures: list[EpochFigures] = []
        with ExitStack() as stack:
            for thread in self._threads:
                stack.enter_context(thread)
            if not plan and self.writer.manifest is None and not self.writer.version:
                self._commit_untrained()
            coming = self._pieces(left[0]) if left else []
            for iteration, following in zip(left, [*left[1:], None], strict=False):
                pieces, coming = coming, [] if following is None else self._pieces(following)
                figures.append(self._iterate(iteration, pieces, coming))
                self._report(figures, len(left))
            self.uploads.io.drain()
        return figures

    @property
    def _threads(self) -> tuple[Background, ...]:
        return self.uploads.io, self.buffer.io, self.ahead.io

    @property
    def _waited(self) -> float:
        """Seconds this thread has waited for the others."""
        return sum(thread.waited for thread in self._threads)

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
            f"{rate} edges/s, {human_seconds(last.seconds)}, {last.waited / max(last.seconds, 1e-9):.1%} of it waiting "
            f"for I/O; ETA {human_seconds(rest)}"
        )

    def _pieces(self, iteration: Iteration) -> list[Piece]:
        """Return what an iteration trains, in its order: a chunk of each bucket."""
        path, chunk, chunks = iteration.edge_path_idx, iteration.edge_chunk_idx, iteration.num_edge_chunks
        return [
            Piece(path, bucket, *chunk_bounds(self.edges.count(path, bucket), chunk, chunks))
            for bucket in iteration_order(self.config, seed=self.seed, number=iteration.number)
        ]

    def _iterate(self, iteration: Iteration, pieces: list[Piece], coming: list[Piece]) -> EpochFigures:
        """Train and commit an iteration; ``coming`` is what the one after it trains."""
        started, waited = time.monotonic(), self._waited
        info = self._info(iteration)
        stamp = Stamp(iteration.number, info)
        self.buffer.begin([piece.bucket for piece in pieces], [piece.bucket for piece in coming], stamp)
        results = self._train(iteration, pieces, coming)
        self._check_ledger(results, sum(piece.edges for piece in pieces))
        trained = sum(stats.count for stats, _, _ in results)
        loss = sum(stats.loss * stats.count for stats, _, _ in results) / max(trained, 1)
        held_out = [after for _, _, after in results if after is not None]
        average = EvalStats.mean(held_out) if held_out else None
        objects = self._store(stamp)
        stored = time.monotonic()
        io = IoStats(stored - started, self._waited - waited)
        first = (iteration.number - 1) * len(pieces)
        lines = [
            stats_line(stats, *piece.bucket, index, info, before=before, after=after)
            for index, (piece, (stats, before, after)) in enumerate(zip(pieces, results, strict=True), start=first)
        ]
        lines.append(iteration_line(average, io, first + len(pieces) - 1, info))
        self._commit(objects, iteration, edges=trained, lines=lines)
        ended = time.monotonic()
        return EpochFigures(iteration.epoch_idx, loss, trained, ended - started, io.waited + ended - stored, average)

    def _train(self, iteration: Iteration, pieces: list[Piece], coming: list[Piece]) -> list[BucketResult]:
        total = sum(piece.edges for piece in pieces)
        results, seen = [], 0
        with Progress(f"epoch {iteration.epoch_idx + 1}/{iteration.num_epochs}", total=total) as progress:
            for piece, upcoming in zip(pieces, [*pieces[1:], *coming[:1], None], strict=False):
                begin, end = (
                    (iteration.number - 1 + edges / max(total, 1)) / len(self._plan)
                    for edges in (seen, seen + piece.edges)
                )
                results.append(self._train_bucket(iteration, piece, upcoming, progress, (begin, end)))
                seen += piece.edges
        return results

    def _train_bucket(
        self,
        iteration: Iteration,
        piece: Piece,
        upcoming: Piece | None,
        progress: Progress,
        reach: tuple[float, float],
    ) -> BucketResult:
        """Train a bucket's chunk and rank its held-out edges before and after.

        ``upcoming`` comes after it; ``reach`` is from where to where in the whole training, 0 to 1, the chunk takes it.
        """
        lhs, rhs = self.buffer.swap_to(piece.bucket)
        edges = self.ahead.take(piece, upcoming)
        place = (iteration.edge_path_idx, iteration.edge_chunk_idx, *piece.bucket)
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
                generator=seeded(self.seed, "bucket", iteration.number, *piece.bucket),
                rate=lambda share: rate_factor(self.config, begin + (end - begin) * share),
                delay=self.config.hogwild_delay if iteration.epoch_idx == 0 else 0.0,
                on_batch=partial(self._heed, progress),
            )
            progress.advance(len(held_out))
            return stats, before, evaluated()
        except FormatError as error:
            self._check_threads()  # what they cannot read has its own name
            path = f"{self.config.edge_paths[iteration.edge_path_idx]}/{edge_file_name(*piece.bucket)}"
            raise FormatError(f"{path}: {error}") from None
        except TrainingDivergedError as error:
            raise TrainingDivergedError(
                f"epoch {iteration.epoch_idx + 1}, bucket ({piece.bucket.lhs}, {piece.bucket.rhs}): {error}; "
                f"version {self.writer.version} stays the newest"
            ) from None

    def _heed(self, progress: Progress, count: int, loss: float) -> None:
        """Tell of progress, and stop where another thread has failed: a bucket may take hours."""
        self._check_threads()
        progress.advance(count, loss=loss)

    def _check_threads(self) -> None:
        for thread in self._threads:
            thread.check()

    def _check_ledger(self, results: list[BucketResult], total: int) -> None:
        """Every edge of the iteration's chunk was trained exactly once or held out, or nothing is committed."""
        done = sum(stats.count + (after.count if after else 0) for stats, _, after in results)
        if done != total:
            raise RuntimeError(f"trained or held out {done} edges where the buckets hold {total}: a bug")

    def _commit_untrained(self) -> None:
        stamp = Stamp(0, self._untrained())
        self.buffer.begin([], [], stamp)
        self._commit(self._store(stamp), None, edges=0, lines=[])

    def _store(self, stamp: Stamp) -> dict[str, ObjectRecord]:
        """Store what of a version is not stored yet, and return the records of all its files."""
        self.buffer.finish()
        model = self.scratch / model_file_name(stamp.version)
        write_model(model, ModelState(*self.engine.parameters()), config=self.config, iteration=stamp.iteration)
        self.uploads.add(model)
        objects = self.uploads.collect()
        model.unlink()
        return objects

    def _commit(
        self, objects: dict[str, ObjectRecord], iteration: Iteration | None, *, edges: int, lines: list[str]
    ) -> None:
        before = self.writer.manifest
        self.stats.append(lines)
        manifest = self.writer.commit(objects, iteration=iteration, edges=edges)
        self._preserve(iteration, manifest)
        if before is not None:
            self.uploads.drop(before)

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
