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
from pbg_tasks.train.buffer import PartitionBuffer
from pbg_tasks.train.course import Course
from pbg_tasks.train.edge_files import EdgesAhead
from pbg_tasks.train.engine import NOTHING, Position
from pbg_tasks.train.partition_files import PartitionFiles, Stamp
from pbg_tasks.train.piece_records import continued, piece_record, result_of
from pbg_tasks.train.pieces import PieceTrainer
from pbg_tasks.train.remnant import Remnant
from pbg_tasks.train.uploads import Uploads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointWriter, Iteration, ObjectRecord, PieceRecord
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.train.anchor import Anchor
    from pbg_tasks.train.background import Background
    from pbg_tasks.train.edge_files import EdgeFiles, Piece
    from pbg_tasks.train.engine import Engine
    from pbg_tasks.train.pieces import PieceResult
    from pbg_tasks.train.source import StartingPoint


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
        anchor: draws vectors to those of the night before.
        stopping: tells whether the process was told to end.
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
        self._course = Course(config, edges, seed=seed)
        self._pieces = PieceTrainer(config, engine, seed)
        self.stats = StatsMirror(writer.store, writer.prefix, self._course.done(writer))
        self.live = LiveMirror(writer.spec, writer.partial.writer_epoch, self.uploads.mirror)
        state = start.model(ModelState(*engine.parameters()))
        self._course.check_resumable(writer, start)
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
        plan = self._course.plan
        left = plan[self.writer.version :]
        if self.writer.version:
            say(
                f"resuming after version {self.writer.version} of {len(plan)}"
                if left
                else f"all {len(plan)} iterations were done before; raise num_epochs to train on"
            )
        figures: list[EpochFigures] = []
        self._course.catch_up(self.writer)
        with ExitStack() as stack:
            for thread in self._threads:
                stack.enter_context(thread)
            if not plan and self.writer.manifest is None and not self.writer.version:
                self._commit_untrained()
            coming = self._course.pieces(left[0]) if left else []
            if left:
                self._resume(left[0], coming)
            for iteration, following in zip(left, [*left[1:], None], strict=False):
                pieces, coming = coming, [] if following is None else self._course.pieces(following)
                try:
                    figures.append(self._iterate(iteration, pieces, coming))
                except TrainingDivergedError as error:  # in training, or in what another thread was to write
                    raise TrainingDivergedError(f"{error}; version {self.writer.version} stays the newest") from None
                self._report(figures, len(left))
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

    def _iterate(self, iteration: Iteration, pieces: list[Piece], coming: list[Piece]) -> EpochFigures:
        """Train and commit an iteration; ``coming`` is what the one after it trains."""
        started, waited = time.monotonic(), self._waited
        info = self._course.info(iteration)
        stamp = Stamp(iteration.number, info)
        order = [piece.bucket for piece in pieces[len(self._remnant.done) :]]
        self.buffer.begin(order, [piece.bucket for piece in coming], stamp, final=self._remnant.keys)
        results = self._train(iteration, pieces, coming)
        self._check_ledger(results, sum(piece.edges for piece in pieces))
        trained = sum(result.stats.count for result in results)
        loss = sum(result.stats.loss * result.stats.count for result in results) / max(trained, 1)
        held_out = [result.after for result in results if result.after is not None]
        average = EvalStats.mean(held_out) if held_out else None
        objects = self._store(stamp) | self._remnant.final
        stored = time.monotonic()
        io = IoStats(stored - started, self._waited - waited)
        first = (iteration.number - 1) * len(pieces)
        lines = [
            stats_line(result.stats, *piece.bucket, index, info, before=result.before, after=result.after)
            for index, (piece, result) in enumerate(zip(pieces, results, strict=True), start=first)
        ]
        if average is not None:
            lines.append(iteration_line(average, first + len(pieces) - 1, info))
        lines.append(io_line(io, info))
        self._commit(objects, iteration, edges=trained, lines=lines, retrained=self._remnant.retrained)
        self._remnant.committed()
        ended = time.monotonic()
        return EpochFigures(iteration.epoch_idx, loss, trained, ended - started, io.waited + ended - stored, average)

    def _train(self, iteration: Iteration, pieces: list[Piece], coming: list[Piece]) -> list[PieceResult]:
        total = sum(piece.edges for piece in pieces)
        before = self._remnant.done
        results, seen = [result_of(piece) for piece in before], sum(piece.edges for piece in pieces[: len(before)])
        with Progress(f"epoch {iteration.epoch_idx + 1}/{iteration.num_epochs}", total=total) as progress:
            progress.advance(seen)
            for number, piece in enumerate(pieces[len(before) :], start=len(before) + 1):
                upcoming = chain(islice(pieces, number, None), coming)
                reach = self._course.reach(iteration, seen, piece, total)
                begun = self._remnant.begun if number == len(before) + 1 else None
                try:
                    result = self._train_piece(iteration, piece, upcoming, progress, reach, begun)
                except EvictedError:  # while it waited for what the piece needs
                    self._park(iteration, pieces, results, None)
                if result.stopped is not None:
                    self._park(iteration, pieces, results, result)
                results.append(result)
                seen += piece.edges
        return results

    def _train_piece(
        self,
        iteration: Iteration,
        piece: Piece,
        upcoming: Iterable[Piece],
        progress: Progress,
        reach: tuple[float, float],
        begun: PieceRecord | None,
    ) -> PieceResult:
        """Train a piece, or what is left of one that was begun; ``upcoming`` come after it."""
        lhs, rhs = self.buffer.swap_to(piece.bucket, self._check_stop)
        heed = partial(self._heed, progress, iteration, piece)
        try:
            # No name for the edges here: what some are held out of would live on beside both parts.
            result = self._pieces.train(
                iteration,
                piece,
                self.ahead.take(piece, upcoming),
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
        record = piece_record(piece.bucket, result, rank=0, lease=0)
        if begun is not None:
            record = continued(begun, record)
            result = result_of(record)._replace(stopped=result.stopped)
        if result.stopped is None:
            progress.advance(result.held_out)
            self.live.done(record)
        return result

    def _heed(self, progress: Progress, iteration: Iteration, piece: Piece, count: int, loss: float) -> None:
        """Tell of progress, and stop where another thread has failed: a bucket may take hours."""
        self._check_threads()
        progress.advance(count, loss=loss)
        self.live.tell(iteration, *piece.bucket)

    def _check_stop(self) -> None:
        if self._stopping():
            raise EvictedError("told to end (SIGTERM)")

    def _check_threads(self) -> None:
        for thread in self._threads:
            thread.check()

    def _resume(self, iteration: Iteration, pieces: list[Piece]) -> None:
        """Take over what is stored of the first iteration that is left."""
        state = self._remnant.resume(iteration, pieces)
        if state is None:
            return
        self.engine.load_parameters(state.params, state.sums)
        for piece in self._remnant.done:
            self.live.done(piece)
        begun = self._remnant.begun
        say(
            f"epoch {iteration.epoch_idx + 1}/{iteration.num_epochs}: going on after {len(self._remnant.done)} of "
            f"{len(pieces)} buckets" + (f" and {human_count(begun.edges)} edges of the next" if begun else "")
        )

    def _park(
        self, iteration: Iteration, pieces: list[Piece], results: list[PieceResult], last: PieceResult | None
    ) -> NoReturn:
        """Store what is trained of an iteration, so that the next start goes on there.

        Args:
            iteration: under way.
            pieces: it trains.
            results: of those trained to their end.
            last: of the one after them, where it was stopped before its end.
        """
        remnant, count = self._remnant, len(results)
        told = f"told to end (SIGTERM) in epoch {iteration.epoch_idx + 1}/{iteration.num_epochs}"
        self.uploads.abandon()
        for thread in self._threads:
            thread.patience = _PATIENCE_SECONDS
        buckets = [piece.bucket for piece in pieces[: count + 1]]
        done = [
            piece_record(bucket, result, rank=0, lease=0)
            for bucket, result in list(zip(buckets, results, strict=False))[len(remnant.done) :]
        ]
        begun = None
        if last is not None and last.stopped is not None and last.stopped.batches:
            begun = piece_record(buckets[count], last, rank=0, lease=0)
        before = 0 if done or remnant.begun is None else remnant.begun.batches
        changed = buckets[len(remnant.done) : count + (begun is not None and begun.batches > before)]
        if not changed:
            raise EvictedError(f"{told}; nothing was trained since the last that is stored")
        try:
            files = self.buffer.park(remnant.changed_by(changed), None if last is None else buckets[count])
            model = self._write_model(Stamp(iteration.number, self._course.info(iteration)))
            remnant.store(iteration, self._course.order, done=done, begun=begun, files=files, model=model)
        except (StorageError, ResourceError) as error:
            raise EvictedError(
                f"{told}; what was trained of it could not be stored, and is trained again ({error})"
            ) from error
        raise EvictedError(
            f"{told}; {count} of {len(pieces)} buckets"
            + (" and a part of the next" if begun is not None else "")
            + " are stored, and the next start goes on there"
        )

    def _check_ledger(self, results: list[PieceResult], total: int) -> None:
        """Every edge of the iteration's chunk was trained exactly once or held out, or nothing is committed."""
        done = sum(result.accounted for result in results)
        if done != total:
            raise RuntimeError(f"trained or held out {done} edges where the buckets hold {total}: a bug")

    def _commit_untrained(self) -> None:
        stamp = Stamp(0, self._course.info(None))
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
    ) -> None:
        before = self.writer.manifest
        self.stats.append(lines)
        manifest = self.writer.commit(objects, iteration=iteration, edges=edges, retrained=retrained)
        self.live.committed()
        if iteration is not None:
            self._course.preserve(self.writer, iteration, manifest)
        if before is not None:
            self.uploads.drop(before)
