"""The training loop: iterations over buckets, one commit an iteration (PBG's train_cpu, single rank).

An iteration is one (epoch, edge path, edge chunk); its number is the checkpoint version it commits. Whatever happens
between two commits, the next start continues from the last one; or, where the process was told to end and had the time
to store what it had, after the last batch that was trained (``remnant``).

Partitions, edges and uploads are read and written by three threads of their own while this one trains; only the commit,
and what comes faster than it can be read or written, makes it wait.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, NoReturn

from pbg_tasks.checkpoint import LiveMirror, StatsMirror
from pbg_tasks.errors import EvictedError, FormatError, ResourceError, StorageError, TrainingDivergedError
from pbg_tasks.formats.directory import EvalStats, IoStats, io_line, iteration_line, stats_line
from pbg_tasks.formats.model import ModelState, model_file_name, write_model
from pbg_tasks.progress import Progress, human_count, human_seconds, say
from pbg_tasks.train.data.buffer import PartitionBuffer
from pbg_tasks.train.data.edge_files import EdgesAhead
from pbg_tasks.train.data.partition_files import PartitionFiles, Stamp
from pbg_tasks.train.data.uploads import Uploads
from pbg_tasks.train.edge_chunk_records import continued, edge_chunk_record, result_of
from pbg_tasks.train.edge_chunks import EdgeChunkTrainer
from pbg_tasks.train.engine.base import NOTHING, Position
from pbg_tasks.train.iteration_plan import IterationPlan
from pbg_tasks.train.partial_iteration import Remnant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointWriter, EdgeChunkRecord, Iteration, ObjectRecord
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.train.data.background import Background
    from pbg_tasks.train.data.edge_files import EdgeChunk, EdgeFiles
    from pbg_tasks.train.early_stopping import EarlyStopping
    from pbg_tasks.train.edge_chunks import EdgeChunkResult
    from pbg_tasks.train.engine.anchor import Anchor
    from pbg_tasks.train.engine.base import Engine
    from pbg_tasks.train.starting_point import StartingPoint


_PATIENCE_SECONDS = 1.0  # for what other threads still read or store, once what counts is stored


@dataclass(frozen=True, slots=True)
class EpochFigures:
    """What one iteration did.

    Attributes:
        epoch: from 0.
        loss: per trained edge, both sides.
        edges: trained.
        seconds: it took, with reading and writing.
        waited: seconds of them in which nothing was trained, because something had to be read or written first.
        held_out: figures of the edges held out by ``eval_fraction``, or of the sample of valid edges, after training.
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
        anchor: draws vectors to those of the night before.
        stopping: tells whether the process was told to end.
        early_stopping: ends the training before its last epoch; None: nothing does.
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
        anchor: Anchor | None = None,
        stopping: Callable[[], bool] = lambda: False,
        early_stopping: EarlyStopping | None = None,
    ) -> None:
        self._stopping = stopping
        self.config, self.engine, self.edges, self.writer, self.seed = config, engine, edges, writer, seed
        self.scratch = scratch
        self.uploads = Uploads(writer)
        self._remnant = Remnant(config, writer, start, scratch)
        self.buffer = PartitionBuffer(
            config,
            self._remnant,
            PartitionFiles(config, scratch),
            settle=anchor.draw if anchor is not None else None,
            on_final=self.uploads.add,
        )
        self.ahead = EdgesAhead(edges)
        self._iteration_plan = IterationPlan(config, edges, seed=seed, early_stopping=early_stopping)
        self._edge_chunks = EdgeChunkTrainer(config, engine, seed, early_stopping)
        self.stats = StatsMirror(writer.store, writer.prefix, self._iteration_plan.done(writer))
        self.live = LiveMirror(writer.spec, writer.partial.writer_epoch, self.uploads.mirror)
        state = start.model(ModelState(*engine.parameters()))
        self._iteration_plan.check_resumable(writer, start)
        if state is not None:
            engine.load_parameters(state.params, state.sums)

    def run(self) -> list[EpochFigures]:
        """Train what is left and commit each iteration.

        Returns:
            The figures of the iterations trained now (none when all were done before).

        Raises:
            EvictedError: the process was told to end; what it had trained is stored.
            ConfigError: what is committed was trained with another number of edge paths or chunks.
            TrainingDivergedError: a loss or an embedding is not finite; that iteration is not committed.
            ConflictError: another writer took the run over.
        """
        plan = self._iteration_plan.plan
        left = self._iteration_plan.left(self.writer.version, self.writer.manifest)
        if self.writer.version:
            say(
                f"resuming after version {self.writer.version} of {len(plan)}"
                if left
                else "early stopping ended the training before"
                if self._iteration_plan.stops(self.writer.manifest)
                else f"all {len(plan)} iterations were done before; raise num_epochs to train on"
            )
        figures: list[EpochFigures] = []
        self._iteration_plan.catch_up(self.writer)
        with ExitStack() as stack:
            for thread in self._threads:
                stack.enter_context(thread)
            if not plan and self.writer.manifest is None and not self.writer.version:
                self._commit_untrained()
            coming = self._iteration_plan.edge_chunks(left[0]) if left else []
            if left:
                self._resume(left[0], coming)
            for iteration, following in zip(left, [*left[1:], None], strict=False):
                edge_chunks, coming = coming, [] if following is None else self._iteration_plan.edge_chunks(following)
                try:
                    figures.append(self._iterate(iteration, edge_chunks, coming))
                except TrainingDivergedError as error:  # in training, or in what another thread was to write
                    raise TrainingDivergedError(f"{error}; version {self.writer.version} stays the newest") from None
                self._report(figures, len(left))
                if self._iteration_plan.stops(self.writer.manifest):
                    break
                if following is not None and self._stopping():
                    raise EvictedError(f"told to end (SIGTERM); version {self.writer.version} is committed")
            self.uploads.io.drain()
        return figures

    @property
    def _threads(self) -> tuple[Background, ...]:
        return self.uploads.io, self.buffer.io, self.ahead.io

    @property
    def _waited(self) -> float:
        """Seconds this thread has waited for the others."""
        return sum(thread.waited for thread in self._threads)

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

    def _iterate(self, iteration: Iteration, edge_chunks: list[EdgeChunk], coming: list[EdgeChunk]) -> EpochFigures:
        """Train and commit an iteration; ``coming`` is what the one after it trains."""
        started, waited = time.monotonic(), self._waited
        info = self._iteration_plan.info(iteration)
        stamp = Stamp(iteration.number, info)
        order = [edge_chunk.bucket for edge_chunk in edge_chunks[len(self._remnant.done) :]]
        self.buffer.begin(order, [edge_chunk.bucket for edge_chunk in coming], stamp, final=self._remnant.keys)
        results = self._train(iteration, edge_chunks, coming)
        self._check_ledger(results, sum(edge_chunk.edges for edge_chunk in edge_chunks))
        trained = sum(result.stats.count for result in results)
        loss = sum(result.stats.loss * result.stats.count for result in results) / max(trained, 1)
        held_out = [result.after for result in results if result.after is not None]
        average = EvalStats.mean(held_out) if held_out else None
        objects = self._store(stamp) | self._remnant.final
        stored = time.monotonic()
        io = IoStats(stored - started, self._waited - waited)
        first = (iteration.number - 1) * len(edge_chunks)
        lines = [
            stats_line(result.stats, *edge_chunk.bucket, index, info, before=result.before, after=result.after)
            for index, (edge_chunk, result) in enumerate(zip(edge_chunks, results, strict=True), start=first)
        ]
        if average is not None:
            lines.append(iteration_line(average, first + len(edge_chunks) - 1, info))
        lines.append(io_line(io, info))
        valid = self._iteration_plan.figure(iteration, average)
        self._commit(objects, iteration, edges=trained, lines=lines, retrained=self._remnant.retrained, valid=valid)
        self._remnant.committed()
        ended = time.monotonic()
        return EpochFigures(iteration.epoch_idx, loss, trained, ended - started, io.waited + ended - stored, average)

    def _train(
        self, iteration: Iteration, edge_chunks: list[EdgeChunk], coming: list[EdgeChunk]
    ) -> list[EdgeChunkResult]:
        total = sum(edge_chunk.edges for edge_chunk in edge_chunks)
        before = self._remnant.done
        results, seen = (
            [result_of(edge_chunk) for edge_chunk in before],
            sum(edge_chunk.edges for edge_chunk in edge_chunks[: len(before)]),
        )
        with Progress(f"epoch {iteration.epoch_idx + 1}/{iteration.num_epochs}", total=total) as progress:
            progress.advance(seen)
            for number, edge_chunk in enumerate(edge_chunks[len(before) :], start=len(before) + 1):
                upcoming = chain(islice(edge_chunks, number, None), coming)
                reach = self._iteration_plan.reach(iteration, seen, edge_chunk, total)
                begun = self._remnant.begun if number == len(before) + 1 else None
                try:
                    result = self._train_edge_chunk(iteration, edge_chunk, upcoming, progress, reach, begun)
                except EvictedError:  # while it waited for what the edge chunk needs
                    self._park(iteration, edge_chunks, results, None)
                if result.stopped is not None:
                    self._park(iteration, edge_chunks, results, result)
                results.append(result)
                seen += edge_chunk.edges
        return results

    def _train_edge_chunk(
        self,
        iteration: Iteration,
        edge_chunk: EdgeChunk,
        upcoming: Iterable[EdgeChunk],
        progress: Progress,
        reach: tuple[float, float],
        begun: EdgeChunkRecord | None,
    ) -> EdgeChunkResult:
        """Train an edge chunk, or what is left of one that was begun; ``upcoming`` come after it."""
        lhs, rhs = self.buffer.swap_to(edge_chunk.bucket, self._check_stop)
        heed = partial(self._heed, progress, iteration, edge_chunk)
        try:
            # No name for the edges here: what some are held out of would live on beside both parts.
            result = self._edge_chunks.train(
                iteration,
                edge_chunk,
                self.ahead.take(edge_chunk, upcoming),
                lhs,
                rhs,
                reach=reach,
                on_batch=heed,
                begun=NOTHING if begun is None else Position(begun.batches, begun.edges, begun.drawn),
                stop=self._stopping,
            )
        except (FormatError, TrainingDivergedError):
            self._check_threads()  # what they cannot read or may not write has its own name
            raise
        record = edge_chunk_record(edge_chunk.bucket, result, rank=0, lease=0)
        if begun is not None:
            record = continued(begun, record)
            result = result_of(record)._replace(stopped=result.stopped)
        if result.stopped is None:
            progress.advance(result.held_out)
            self.live.done(record)
        return result

    def _heed(self, progress: Progress, iteration: Iteration, edge_chunk: EdgeChunk, count: int, loss: float) -> None:
        """Tell of progress, and stop where another thread has failed: a bucket may take hours."""
        self._check_threads()
        progress.advance(count, recent_loss=loss)
        self.live.tell(iteration, *edge_chunk.bucket)

    def _check_stop(self) -> None:
        if self._stopping():
            raise EvictedError("told to end (SIGTERM)")

    def _check_threads(self) -> None:
        for thread in self._threads:
            thread.check()

    def _resume(self, iteration: Iteration, edge_chunks: list[EdgeChunk]) -> None:
        """Take over what is stored of the first iteration that is left."""
        state = self._remnant.resume(iteration, edge_chunks)
        if state is None:
            return
        self.engine.load_parameters(state.params, state.sums)
        for edge_chunk in self._remnant.done:
            self.live.done(edge_chunk)
        begun = self._remnant.begun
        say(
            f"epoch {iteration.epoch_idx + 1}/{iteration.num_epochs}: going on after {len(self._remnant.done)} of "
            f"{len(edge_chunks)} buckets" + (f" and {human_count(begun.edges)} edges of the next" if begun else "")
        )

    def _park(
        self,
        iteration: Iteration,
        edge_chunks: list[EdgeChunk],
        results: list[EdgeChunkResult],
        last: EdgeChunkResult | None,
    ) -> NoReturn:
        """Store what is trained of an iteration, so that the next start goes on there.

        Args:
            iteration: under way.
            edge_chunks: it trains.
            results: of those trained to their end.
            last: of the one after them, where it was stopped before its end.
        """
        remnant, count = self._remnant, len(results)
        told = f"told to end (SIGTERM) in epoch {iteration.epoch_idx + 1}/{iteration.num_epochs}"
        self.uploads.abandon()
        for thread in self._threads:
            thread.patience = _PATIENCE_SECONDS
        buckets = [edge_chunk.bucket for edge_chunk in edge_chunks[: count + 1]]
        done = [
            edge_chunk_record(bucket, result, rank=0, lease=0)
            for bucket, result in list(zip(buckets, results, strict=False))[len(remnant.done) :]
        ]
        begun = None
        if last is not None and last.stopped is not None and last.stopped.batches:
            begun = edge_chunk_record(buckets[count], last, rank=0, lease=0)
        before = 0 if done or remnant.begun is None else remnant.begun.batches
        changed = buckets[len(remnant.done) : count + (begun is not None and begun.batches > before)]
        if not changed:
            raise EvictedError(f"{told}; nothing was trained since the last that is stored")
        try:
            files = self.buffer.park(remnant.changed_by(changed), None if last is None else buckets[count])
            model = self._write_model(Stamp(iteration.number, self._iteration_plan.info(iteration)))
            remnant.store(iteration, self._iteration_plan.order, done=done, begun=begun, files=files, model=model)
        except (StorageError, ResourceError) as error:
            raise EvictedError(
                f"{told}; what was trained of it could not be stored, and is trained again ({error})"
            ) from error
        raise EvictedError(
            f"{told}; {count} of {len(edge_chunks)} buckets"
            + (" and a part of the next" if begun is not None else "")
            + " are stored, and the next start goes on there"
        )

    def _check_ledger(self, results: list[EdgeChunkResult], total: int) -> None:
        """Every edge of the iteration's chunk was trained exactly once or held out, or nothing is committed."""
        done = sum(result.accounted for result in results)
        if done != total:
            raise RuntimeError(f"trained or held out {done} edges where the buckets hold {total}: a bug")

    def _commit_untrained(self) -> None:
        stamp = Stamp(0, self._iteration_plan.info(None))
        self.buffer.begin([], [], stamp)
        self._commit(self._store(stamp), None, edges=0, lines=[])

    def _store(self, stamp: Stamp) -> dict[str, ObjectRecord]:
        """Store what of a version is not stored yet, and return the records of all its files."""
        self.buffer.finish()
        model = self._write_model(stamp)
        self.uploads.add(model)
        objects = self.uploads.collect()
        model.unlink()
        return objects

    def _write_model(self, stamp: Stamp) -> Path:
        path = self.scratch / model_file_name(stamp.version)
        state = ModelState(*self.engine.parameters(), self.engine.loops)
        write_model(path, state, config=self.config, iteration=stamp.iteration)
        return path

    def _commit(
        self,
        objects: dict[str, ObjectRecord],
        iteration: Iteration | None,
        *,
        edges: int,
        lines: list[str],
        retrained: int = 0,
        valid: float | None = None,
    ) -> None:
        before = self.writer.manifest
        self.stats.append(lines)
        manifest = self.writer.commit(objects, iteration=iteration, edges=edges, retrained=retrained, valid=valid)
        self.live.committed()
        if iteration is not None:
            self._iteration_plan.preserve(self.writer, iteration, manifest)
        if before is not None:
            self.uploads.drop(before)
