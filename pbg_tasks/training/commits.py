"""Commit of iterations: versions with their figures and PBG's statistics."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import StatsMirror
from pbg_tasks.formats.directory import EvalStats, IoStats, io_line, iteration_line, stats_line
from pbg_tasks.progress import fraction, human_count, human_seconds, say
from pbg_tasks.training.edge_chunk_records import bucket_stats, eval_stats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pbg_tasks.checkpoint import CheckpointWriter, EdgeChunkRecord, Iteration, Manifest, ObjectRecord
    from pbg_tasks.training.iteration_plan import IterationPlan


@dataclass(frozen=True, slots=True)
class EpochFigures:
    """Figures of an iteration.

    Attributes:
        epoch: from 0.
        loss: per trained edge, both sides.
        edges: trained in these seconds, thus without those that an earlier process or gang trained.
        seconds: that it took, with reading and writing.
        waited: seconds of them without training, because something had to be read or written first.
        held_out: figures of the edges held out by ``eval_fraction``, or of the sample of valid edges, after training.
    """

    epoch: int
    loss: float
    edges: int
    seconds: float
    waited: float
    held_out: EvalStats | None = None


class Commits:
    """Iterations that a training has committed.

    Args:
        writer: the claimed checkpoint directory.
        iteration_plan: of the training.
        drop: deletes the data of a version that is no longer the newest.

    Attributes:
        figures: of the iterations committed now.
        stats: the lines of all iterations.
    """

    def __init__(
        self,
        writer: CheckpointWriter,
        iteration_plan: IterationPlan,
        *,
        drop: Callable[[Manifest], None],
    ) -> None:
        self.figures: list[EpochFigures] = []
        self.stats = StatsMirror(writer.store, writer.prefix, iteration_plan.done(writer))
        self._writer, self._plan = writer, iteration_plan
        self._drop = drop

    def commit_untrained(self, objects: Mapping[str, ObjectRecord]) -> None:
        """Commit the vectors as they start, where the config has no epoch."""
        self._store_lines([])
        self._writer.commit(dict(objects), iteration=None, edges=0)

    def commit(
        self,
        iteration: Iteration,
        done: Sequence[EdgeChunkRecord],
        objects: Mapping[str, ObjectRecord],
        *,
        retrained: int,
        earlier: Sequence[EdgeChunkRecord],
        io: IoStats,
        report: Callable[[str], None] = say,
    ) -> bool:
        """Commit an iteration.

        Args:
            iteration: that is trained.
            done: its edge chunks.
            objects: files of the version.
            retrained: edges that were trained more than once.
            earlier: edge chunks, or parts of them, that an earlier process or gang trained.
            io: time up to now, without that of ``earlier``.
            report: receives a line about the iteration.

        Returns:
            Whether early stopping ends the training with it.

        Raises:
            ConflictError: another writer has claimed the directory.
        """
        began, before = time.monotonic(), self._writer.manifest
        trained = sum(edge_chunk.edges for edge_chunk in done)
        loss = sum(bucket_stats(edge_chunk).loss * edge_chunk.edges for edge_chunk in done) / max(trained, 1)
        ranked = [after for edge_chunk in done if (after := eval_stats(edge_chunk.after)) is not None]
        held_out = EvalStats.mean(ranked) if ranked else None
        self._store_lines(self._lines(iteration, done, held_out, io))
        valid = self._plan.figure(iteration, held_out, before)
        manifest = self._writer.commit(
            dict(objects), iteration=iteration, edges=trained, retrained=retrained, valid=valid
        )
        self._plan.preserve(self._writer, iteration, manifest)
        if before is not None:
            self._drop(before)
        committing = time.monotonic() - began
        edges = trained - sum(edge_chunk.edges for edge_chunk in earlier)
        self.figures.append(
            EpochFigures(iteration.epoch_idx, loss, edges, io.seconds + committing, io.waited + committing, held_out)
        )
        report(self._line(iteration, share=trained / max(sum(each.edges + each.held_out for each in done), 1)))
        return self._plan.stops(manifest)

    def _store_lines(self, lines: list[str]) -> None:
        """Add an iteration's lines to the files of statistics.

        These have no versions: a writer that was shut out would replace those of its successor.
        """
        self._writer.check_claim()
        self.stats.append(lines)

    def _lines(
        self, iteration: Iteration, done: Sequence[EdgeChunkRecord], held_out: EvalStats | None, io: IoStats
    ) -> list[str]:
        info, first = self._plan.info(iteration), (iteration.number - 1) * len(done)
        lines = [
            stats_line(
                bucket_stats(edge_chunk),
                edge_chunk.lhs,
                edge_chunk.rhs,
                index,
                info,
                before=eval_stats(edge_chunk.before),
                after=eval_stats(edge_chunk.after),
            )
            for index, edge_chunk in enumerate(done, start=first)
        ]
        if held_out is not None:
            lines.append(iteration_line(held_out, first + len(done) - 1, info))
        return [*lines, io_line(io, info)]

    def _line(self, iteration: Iteration, *, share: float) -> str:
        """Return a line about an iteration.

        Args:
            iteration: that is committed.
            share: of its edges that are trained, not held out.
        """
        last, left = self.figures[-1], self._plan.edges() - self._plan.edges(iteration.number)
        # By edges: of an iteration that another process began, the seconds are those of its rest.
        edges = sum(figure.edges for figure in self.figures)
        each = sum(figure.seconds for figure in self.figures) / max(edges, 1)
        rest = human_seconds(each * left * share) if edges or not left else "?"
        rate = human_count(last.edges / max(last.seconds, 1e-9))
        held_out = "" if last.held_out is None else f", held-out MRR {fraction(last.held_out.mrr)} among negatives"
        return (
            f"epoch {last.epoch + 1}/{iteration.num_epochs} committed: loss {last.loss:.4f}{held_out}, "
            f"{rate} edges/s, {human_seconds(last.seconds)}, {last.waited / max(last.seconds, 1e-9):.1%} of it waiting "
            f"for I/O; ETA {rest}"
        )


def check_ledger(done: Sequence[EdgeChunkRecord], total: int) -> None:
    """Check that each edge was trained or held out once.

    An iteration that fails the check must not be committed.

    Args:
        done: its edge chunks.
        total: its edges.
    """
    found = sum(edge_chunk.edges + edge_chunk.held_out for edge_chunk in done)
    if found != total:
        raise RuntimeError(f"trained or held out {found} edges where the buckets hold {total}: a bug")
