"""Loop of a training: iterations of buckets, and a commit after each.

An iteration is one (epoch, edge path, edge chunk); its number is the checkpoint version that it commits (as in PBG's
train_cpu). The loop is the same for every process. A process that trains alone takes buckets in an order that it knows
and reads ahead (``local_work``). A rank of a gang leases each bucket from rank 0 (``ranks.rank``). In both cases the
next start continues from the last commit, or, where the process could still store what it had trained after that, with
the batch after the last one that is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pbg_tasks.training.engine.pace import NOTHING, Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from pbg_tasks.checkpoint import Iteration
    from pbg_tasks.training.data.edge_files import EdgeChunk, EdgesAhead
    from pbg_tasks.training.data.tables import Table
    from pbg_tasks.training.edge_chunks import EdgeChunkResult, EdgeChunkTrainer

    Tables = tuple[Mapping[str, Table], Mapping[str, Table]]
    """Tables of a bucket's left-hand and right-hand side, by entity type."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """An edge chunk to train, or the rest of one.

    Attributes:
        edge_chunk: that is trained.
        reach: its begin and end in the whole training, 0 to 1.
        begun: position up to which it was trained before.
        upcoming: the edge chunks after it, as far as they are known.
    """

    edge_chunk: EdgeChunk
    reach: tuple[float, float]
    begun: Position = NOTHING
    upcoming: Iterable[EdgeChunk] = ()


class Work(Protocol):
    """Part of a training that one process has, with its partitions.

    Attributes:
        edges: reader of the edges.
    """

    edges: EdgesAhead

    def training(self) -> AbstractContextManager[bool]:
        """Open what the training needs; yield whether it is over already.

        An error that leaves the context ends the training of this process in an orderly way.
        """
        ...

    def begin(self, iteration: Iteration) -> None:
        """Begin an iteration, or continue one that is stored in part."""
        ...

    def next(self) -> Assignment | None:
        """Return the next edge chunk; None: all of the iteration are trained."""
        ...

    def bring(self, assigned: Assignment) -> Tables:
        """Return the tables of a bucket, which the caller changes until ``report``.

        Raises:
            EvictedError: SIGTERM came while the tables were read.
        """
        ...

    def watched(self, assigned: Assignment) -> AbstractContextManager[Callable[[int, float], None]]:
        """Show the progress of an edge chunk.

        The callback takes the number of edges since its last call, and their mean loss.
        """
        ...

    def stopping(self) -> bool:
        """Return whether to stop at the next batch."""
        ...

    def report(self, result: EdgeChunkResult) -> None:
        """Take the result of the edge chunk that ``next`` returned.

        Raises:
            EvictedError: it was stopped; what was trained is stored, as far as there was time.
        """
        ...

    def end(self) -> bool:
        """Commit the iteration; return whether early stopping ends the training.

        Raises:
            ConflictError: another writer has claimed the directory.
            EvictedError: SIGTERM came, and the training has iterations left.
        """
        ...


def train_iterations(iterations: Iterable[Iteration], work: Work, trainer: EdgeChunkTrainer) -> None:
    """Train iterations and commit each.

    Args:
        iterations: those that are not committed.
        work: of this process.
        trainer: trains its edge chunks.

    Raises:
        EvictedError: SIGTERM came to this process; what it had trained is stored.
        RankLostError: another rank was lost; likewise.
        TrainingDivergedError: a loss or a row is not finite; that iteration is not committed.
        ConflictError: another writer has claimed the directory.
    """
    with work.training() as over:
        for iteration in () if over else iterations:
            work.begin(iteration)
            while (assigned := work.next()) is not None:
                work.report(_train(iteration, assigned, work, trainer))
            if work.end():
                break


def _train(iteration: Iteration, assigned: Assignment, work: Work, trainer: EdgeChunkTrainer) -> EdgeChunkResult:
    work.edges.ask(assigned.edge_chunk)
    lhs, rhs = work.bring(assigned)
    with work.watched(assigned) as on_batch:
        # The edges get no name here: those that others are held out of would stay in memory beside both parts.
        return trainer.train(
            iteration,
            assigned.edge_chunk,
            work.edges.take(assigned.edge_chunk, assigned.upcoming),
            lhs,
            rhs,
            reach=assigned.reach,
            on_batch=on_batch,
            begun=assigned.begun,
            stop=work.stopping,
        )
