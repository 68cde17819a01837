"""Work of a process that trains alone.

It is a gang of one that knows the order of its buckets.
Three threads read partitions, read edges and store files while the process trains. It waits for them at a commit, and
where they are slower than the training.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, NoReturn

from pbg_tasks.checkpoint import LiveMirror
from pbg_tasks.errors import EvictedError, FormatError, ResourceError, StorageError, TrainingDivergedError
from pbg_tasks.formats.directory import IoStats
from pbg_tasks.formats.model import ModelState, model_file_name, write_model
from pbg_tasks.progress import Progress, human_count, say
from pbg_tasks.training.commits import Commits, check_ledger
from pbg_tasks.training.data.buffer import PartitionBuffer
from pbg_tasks.training.data.edge_files import EdgesAhead
from pbg_tasks.training.data.partition_files import PartitionFiles, Stamp
from pbg_tasks.training.data.uploads import Uploads
from pbg_tasks.training.edge_chunk_records import continued, edge_chunk_record
from pbg_tasks.training.engine.pace import NOTHING, Position
from pbg_tasks.training.loop import Assignment
from pbg_tasks.training.partial_iteration import Remnant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointWriter, EdgeChunkRecord, Iteration, ObjectRecord
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.training.data.background import Background
    from pbg_tasks.training.data.edge_files import EdgeChunk, EdgeFiles
    from pbg_tasks.training.edge_chunks import EdgeChunkResult
    from pbg_tasks.training.engine.anchor import Anchor
    from pbg_tasks.training.engine.base import Engine
    from pbg_tasks.training.iteration_plan import IterationPlan
    from pbg_tasks.training.loop import Tables
    from pbg_tasks.training.schedule import Bucket
    from pbg_tasks.training.starting_point import StartingPoint

_PATIENCE_SECONDS = 1.0  # for other threads' reads and uploads, once everything that counts is stored


class LocalWork:
    """Every bucket of every iteration, in the order of the config.

    Args:
        config: PBG's config, paths included.
        engine: has the parameters.
        edges: the edges.
        start: gives embeddings and parameters.
        writer: the claimed checkpoint directory.
        iteration_plan: of the training.
        scratch: local directory for partition files.
        anchor: draws vectors to those of the night before.
        stopping: returns whether SIGTERM came.

    Attributes:
        edges: reader of the edges.
        commits: of this process.

    Raises:
        ConfigError: what is committed was trained with another number of edge paths or chunks.
    """

    def __init__(
        self,
        config: ConfigSchema,
        *,
        engine: Engine,
        edges: EdgeFiles,
        start: StartingPoint,
        writer: CheckpointWriter,
        iteration_plan: IterationPlan,
        scratch: Path,
        anchor: Anchor | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config, self._engine = config, engine
        self._writer = writer
        self._plan, self._scratch = iteration_plan, scratch
        self._stopping = stopping
        self._uploads = Uploads(writer)
        self._remnant = Remnant(config, writer, start, scratch)
        self._buffer = PartitionBuffer(
            config,
            self._remnant,
            PartitionFiles(config, scratch),
            settle=anchor.draw if anchor is not None else None,
            on_final=self._uploads.add,
            device=engine.place,
        )
        self.edges = EdgesAhead(edges)
        self.commits = Commits(writer, iteration_plan, drop=self._uploads.drop)
        self._live = LiveMirror(writer.spec, writer.partial.writer_epoch, self._uploads.mirror)
        self._coming: list[EdgeChunk] = []
        self._whole: Progress | None = None
        state = start.model(ModelState(*engine.parameters()))
        iteration_plan.check_resumable(writer, start)
        if state is not None:
            engine.load_parameters(state.params, state.sums)

    @contextmanager
    def training(self) -> Iterator[bool]:
        """Run the other threads; yield whether the training is over already."""
        over, writer = self._plan.stops(self._writer.manifest), self._writer
        if writer.version:
            say(self._found(over=over))
        self._plan.catch_up(writer)
        with ExitStack() as stack:
            for thread in self._threads:
                stack.enter_context(thread)
            self._shown = stack.enter_context(ExitStack())
            if not self._plan.plan and writer.manifest is None and not writer.version:
                self._commit_untrained()
            try:
                yield over
            except TrainingDivergedError as error:  # in training, or in what another thread was to write
                raise TrainingDivergedError(f"{error}; version {writer.version} stays the newest") from None
            self._uploads.io.drain()

    def _found(self, *, over: bool) -> str:
        version, total = self._writer.version, len(self._plan.plan)
        if over:
            return "early stopping ended the training before"
        if version < total:
            return f"resuming after version {version} of {total}"
        return f"all {total} iterations were done before; raise num_epochs to train on"

    @property
    def _threads(self) -> tuple[Background, ...]:
        return self._uploads.io, self._buffer.io, self.edges.io

    @property
    def _waited(self) -> float:
        """Seconds that this thread has waited for the others."""
        return sum(thread.waited for thread in self._threads)

    def begin(self, iteration: Iteration) -> None:
        """Begin an iteration, or continue one that is stored in part."""
        self._iteration, self._stamp = iteration, Stamp(iteration.number, self._plan.info(iteration))
        self._edge_chunks = self._coming or self._plan.edge_chunks(iteration)
        following = self._plan.plan[iteration.number : iteration.number + 1]
        self._coming = [edge_chunk for each in following for edge_chunk in self._plan.edge_chunks(each)]
        self._resume()
        self._began, self._waited_before = time.monotonic(), self._waited
        self._done = list(self._remnant.done)
        self._seen = sum(edge_chunk.edges for edge_chunk in self._edge_chunks[: len(self._done)])
        self._total = sum(edge_chunk.edges for edge_chunk in self._edge_chunks)
        order = [edge_chunk.bucket for edge_chunk in self._edge_chunks[len(self._done) :]]
        then = [edge_chunk.bucket for edge_chunk in self._coming]
        self._buffer.begin(order, then, self._stamp, final=self._remnant.keys)
        stored = self._seen + (self._begun.edges if self._begun is not None else 0)
        if self._whole is None:
            total, before = self._plan.edges(), self._plan.edges(iteration.number - 1)
            self._whole = self._shown.enter_context(Progress("train", total, begun=before + stored, ends=False))
        title = f"epoch {iteration.epoch_idx + 1}/{iteration.num_epochs}"
        self._progress = Progress(title, self._total, begun=stored, whole=self._whole)

    def _note(self, text: str) -> None:
        """Print a line about a committed iteration."""
        if self._whole is not None:
            self._whole.note(text)

    def _resume(self) -> None:
        """Take over the part of the iteration that is stored."""
        remnant, iteration = self._remnant, self._iteration
        state = remnant.resume(iteration, self._edge_chunks)
        if state is None:
            return
        self._engine.load_parameters(state.params, state.sums)
        for edge_chunk in remnant.done:
            self._live.done(edge_chunk)
        begun = remnant.begun
        say(
            f"epoch {iteration.epoch_idx + 1}/{iteration.num_epochs}: going on after {len(remnant.done)} of "
            f"{len(self._edge_chunks)} buckets"
            + (f" and {human_count(begun.edges)} edges of the next" if begun else "")
        )

    def next(self) -> Assignment | None:
        """Return the next edge chunk; None: all of the iteration are trained."""
        number = len(self._done)
        if number == len(self._edge_chunks):
            return None
        edge_chunk, begun = self._edge_chunks[number], self._begun
        return Assignment(
            edge_chunk,
            self._plan.reach(self._iteration, self._seen, edge_chunk, self._total),
            begun=NOTHING if begun is None else Position(begun.batches, begun.edges, begun.drawn),
            upcoming=chain(islice(self._edge_chunks, number + 1, None), self._coming),
        )

    @property
    def _begun(self) -> EdgeChunkRecord | None:
        """Record of the next edge chunk's stored part."""
        return self._remnant.begun if len(self._done) == len(self._remnant.done) else None

    def bring(self, assigned: Assignment) -> Tables:
        """Return the tables of a bucket.

        Raises:
            EvictedError: SIGTERM came while the tables were read.
        """
        try:
            return self._buffer.swap_to(assigned.edge_chunk.bucket, self._check_stop)
        except EvictedError:
            self._park(None)

    @contextmanager
    def watched(self, assigned: Assignment) -> Iterator[Callable[[int, float], None]]:
        """Show the progress of an edge chunk."""
        try:
            yield partial(self._advance, assigned.edge_chunk.bucket)
        except (FormatError, TrainingDivergedError):
            self._check_threads()  # the error of a thread that cannot read or write is the more precise one
            raise

    def _advance(self, bucket: Bucket, count: int, loss: float) -> None:
        """Show progress, or raise the error of another thread within the bucket."""
        self._check_threads()
        self._progress.advance(count, recent_loss=loss)
        self._live.report(self._iteration, *bucket)

    def stopping(self) -> bool:
        """Return whether to stop at the next batch."""
        return self._stopping()

    def _check_stop(self) -> None:
        if self.stopping():
            raise EvictedError("told to end (SIGTERM)")

    def _check_threads(self) -> None:
        for thread in self._threads:
            thread.check()

    def report(self, result: EdgeChunkResult) -> None:
        """Take the result of the edge chunk that ``next`` returned.

        Raises:
            EvictedError: it was stopped; what was trained is stored, as far as there was time.
        """
        edge_chunk = self._edge_chunks[len(self._done)]
        record = edge_chunk_record(edge_chunk.bucket, result, rank=0, lease=0)
        if self._begun is not None:
            record = continued(self._begun, record)
        if result.stopped is not None:
            self._park(record)
        self._progress.advance(result.held_out)
        self._live.done(record)
        self._done.append(record)
        self._seen += edge_chunk.edges

    def _park(self, last: EdgeChunkRecord | None) -> NoReturn:
        """Store the trained part of the iteration for the next start.

        Args:
            last: of the edge chunk that was stopped before its end; None where its tables were not there yet.
        """
        iteration, remnant = self._iteration, self._remnant
        count = len(self._done)
        ended = f"told to end (SIGTERM) in epoch {iteration.epoch_idx + 1}/{iteration.num_epochs}"
        self._uploads.abandon()
        for thread in self._threads:
            thread.patience = _PATIENCE_SECONDS
        buckets = [edge_chunk.bucket for edge_chunk in self._edge_chunks[: count + 1]]
        done = self._done[len(remnant.done) :]
        begun = last if last is not None and last.batches else None
        before = 0 if done or remnant.begun is None else remnant.begun.batches
        changed = buckets[len(remnant.done) : count + (begun is not None and begun.batches > before)]
        if not changed:
            raise EvictedError(f"{ended}; nothing was trained since the last that is stored")
        try:
            files = self._buffer.park(remnant.changed_by(changed), None if last is None else buckets[count])
            model = self._write_model()
            remnant.store(iteration, self._plan.order, done=done, begun=begun, files=files, model=model)
        except (StorageError, ResourceError) as error:
            raise EvictedError(
                f"{ended}; what was trained of it could not be stored, and is trained again ({error})"
            ) from error
        raise EvictedError(
            f"{ended}; {count} of {len(self._edge_chunks)} buckets"
            + (" and a part of the next" if begun is not None else "")
            + " are stored, and the next start goes on there"
        )

    def end(self) -> bool:
        """Commit the iteration; return whether it is the training's last.

        Raises:
            EvictedError: SIGTERM came, and the training has iterations left.
        """
        check_ledger(self._done, self._total)
        objects = self._store() | self._remnant.final
        io = IoStats(time.monotonic() - self._began, self._waited - self._waited_before)
        retrained, earlier = self._remnant.retrained, self._remnant.earlier
        # Kept by `commits`, `_note` would make a cycle, in which all tables stay after the training.
        over = self.commits.commit(
            self._iteration, self._done, objects, retrained=retrained, earlier=earlier, io=io, report=self._note
        )
        self._live.committed()
        self._remnant.committed()
        if self._coming and not over and self.stopping():
            raise EvictedError(
                f"told to end (SIGTERM); version {self._writer.version} is committed, and the next start goes on there"
            )
        return over

    def _commit_untrained(self) -> None:
        self._stamp = Stamp(0, self._plan.info(None))
        self._buffer.begin([], [], self._stamp)
        self.commits.commit_untrained(self._store())

    def _store(self) -> dict[str, ObjectRecord]:
        """Store the rest of a version; return the records of its files."""
        self._buffer.finish()
        model = self._write_model()
        self._uploads.add(model)
        objects = self._uploads.collect()
        model.unlink()
        return objects

    def _write_model(self) -> Path:
        path = self._scratch / model_file_name(self._stamp.version)
        state = ModelState(*self._engine.parameters(), self._engine.loops)
        write_model(path, state, config=self._config, iteration=self._stamp.iteration)
        return path
