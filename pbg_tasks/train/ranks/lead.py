"""What rank 0 does besides training: begins iterations and commits them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import StatsMirror, StoredObject
from pbg_tasks.formats.directory import EvalStats, IoStats, io_line, iteration_line, stats_line
from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.progress import human_count, human_seconds, say
from pbg_tasks.train.loop import EpochFigures
from pbg_tasks.train.partitions import Layout, partition_keys
from pbg_tasks.train.piece_records import bucket_stats, eval_stats
from pbg_tasks.train.schedule import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pbg_tasks.checkpoint import CheckpointWriter, Iteration, ObjectRecord
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.train.course import Course
    from pbg_tasks.train.edge_files import Piece
    from pbg_tasks.train.partitions import PartitionKey
    from pbg_tasks.train.ranks.coordinator import Coordinator
    from pbg_tasks.train.ranks.round import Round
    from pbg_tasks.train.ranks.shelf import Shelf
    from pbg_tasks.train.source import StartingPoint


class Lead:
    """Begins and commits iterations.

    Args:
        config: PBG's config.
        coordinator: of the gang.
        writer: the claimed checkpoint directory.
        course: of the training.
        shelf: rank 0's.
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
        course: Course,
        shelf: Shelf,
        start: StartingPoint,
        world: int,
    ) -> None:
        self.figures: list[EpochFigures] = []
        self.stats = StatsMirror(writer.store, writer.prefix, course.done(writer))
        self._config, self._coordinator, self._writer = config, coordinator, writer
        self._course, self._shelf, self._start, self._world = course, shelf, start, world
        self._began = 0.0

    @property
    def record(self) -> dict[str, StoredObject]:
        """The shared parameters that another gang has stored of the iteration that comes next."""
        return dict(self._writer.progress.shared) if self._writer.progress else {}

    def begin(self, iteration: Iteration, pieces: Sequence[Piece]) -> None:
        """Begin an iteration, or go on with it."""
        self._began = time.monotonic()
        self._coordinator.begin(iteration, pieces, self._course.order)
        found = self._coordinator.round
        if found.done or found.seen:
            say(
                f"epoch {iteration.epoch_idx + 1}/{iteration.num_epochs}: going on after {len(found.done)} of "
                f"{len(pieces)} buckets; {human_count(found.seen)} edges of it are stored, "
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
        found, before = self._coordinator.round, self._writer.manifest
        if found.seen != found.edges:
            raise RuntimeError(f"trained or held out {found.seen} edges where the buckets hold {found.edges}: a bug")
        objects = self._coordinator.settle(draw) | self._unneeded(iteration)
        trained = sum(piece.edges for piece in found.done)
        figures = self._figures(iteration, found, trained)
        self.stats.append(self._lines(iteration, found, figures))
        manifest = self._writer.commit(objects, iteration=iteration, edges=trained, retrained=found.retrained)
        self._course.preserve(self._writer, iteration, manifest)
        if before is not None:
            self._writer.drop(before)
        self.figures.append(figures)
        say(
            f"epoch {iteration.epoch_idx + 1}/{iteration.num_epochs} committed: loss {figures.loss:.4f}, "
            f"{human_count(trained / max(figures.seconds, 1e-9))} edges/s, {human_seconds(figures.seconds)}"
        )

    def _figures(self, iteration: Iteration, found: Round, trained: int) -> EpochFigures:
        stats = [bucket_stats(piece) for piece in found.done]
        held_out = [after for piece in found.done if (after := eval_stats(piece.after)) is not None]
        seconds = time.monotonic() - self._began
        return EpochFigures(
            iteration.epoch_idx,
            loss=sum(each.loss * each.count for each in stats) / max(trained, 1),
            edges=trained,
            seconds=seconds,
            waited=max(0.0, seconds - sum(each.seconds for each in stats) / self._world),
            held_out=EvalStats.mean(held_out) if held_out else None,
        )

    def _lines(self, iteration: Iteration, found: Round, figures: EpochFigures) -> list[str]:
        info, first = self._course.info(iteration), (iteration.number - 1) * len(found.done)
        lines = [
            stats_line(
                bucket_stats(piece),
                *Bucket(piece.lhs, piece.rhs),
                index,
                info,
                before=eval_stats(piece.before),
                after=eval_stats(piece.after),
            )
            for index, piece in enumerate(found.done, start=first)
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
            table = self._shelf.get(StoredObject(name=before, record=manifest.objects[before]))
        with self._shelf.written(key, table, "unneeded") as path:
            return path.name, self._writer.put(path.name, path)
