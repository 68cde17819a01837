"""What trainers and the coordinator say to each other about buckets, each as one JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from pbg_tasks.checkpoint import PieceRecord, StoredObject
from pbg_tasks.config.base import Frozen
from pbg_tasks.formats.directory import BucketStats, EvalStats
from pbg_tasks.train.schedule import Bucket

if TYPE_CHECKING:
    from pbg_tasks.train.pieces import PieceResult


class Source(Frozen):
    """Where a partition is; with nothing set it is as it was before the gang began.

    Attributes:
        generation: number of the lease that trained it last.
        served: whether its server has it in memory.
        stored: where it is stored, where it is not served.
    """

    generation: int = 0
    served: bool = False
    stored: StoredObject | None = None


class Grant(Frozen):
    """A bucket to train.

    Attributes:
        lease: its number.
        lhs: partition.
        rhs: partition.
        seen: edges of the iteration trained by anyone before.
        batches: of the bucket trained before, with ``edges`` edges.
        sources: where its partitions are, by PBG's file name.
        last: of these names, those of partitions that no bucket of the iteration needs after this one.
    """

    lease: int
    lhs: int
    rhs: int
    seen: int
    batches: int = 0
    edges: int = 0
    sources: dict[str, Source]
    last: frozenset[str] = frozenset()

    @property
    def bucket(self) -> Bucket:
        """What is trained."""
        return Bucket(self.lhs, self.rhs)


class Report(Frozen):
    """What became of a bucket.

    Attributes:
        piece: what was trained under this lease.
        stopped: whether that was not its end.
        objects: its partitions, by PBG's file name, where the rank has stored them itself.
    """

    piece: PieceRecord
    stopped: bool = False
    objects: dict[str, StoredObject] = Field(default_factory=dict)


def report_of(grant: Grant, rank: int, result: PieceResult, objects: dict[str, StoredObject]) -> Report:
    """Return the report on a piece."""
    stats = result.stats
    piece = PieceRecord(
        lhs=grant.lhs,
        rhs=grant.rhs,
        rank=rank,
        lease=grant.lease,
        edges=stats.count,
        held_out=0 if result.stopped else result.held_out,
        batches=result.stopped.batches if result.stopped else 0,
        figures=(stats.loss, stats.reg, stats.violators_lhs, stats.violators_rhs),
        before=_figures(result.before),
        after=_figures(result.after),
        seconds=stats.seconds,
    )
    return Report(piece=piece, stopped=result.stopped is not None, objects=objects)


def continued(begun: PieceRecord, rest: PieceRecord) -> PieceRecord:
    """Return the record of a piece that was begun under one lease and went on under another."""
    edges = begun.edges + rest.edges
    figures = tuple(
        (first * begun.edges + second * rest.edges) / max(edges, 1)
        for first, second in zip(begun.figures, rest.figures, strict=True)
    )
    update = {"edges": edges, "figures": figures, "before": begun.before, "seconds": begun.seconds + rest.seconds}
    return rest.model_copy(update=update)


def bucket_stats(piece: PieceRecord) -> BucketStats:
    """Return a piece's figures as ``training_stats.json`` has them."""
    return BucketStats(piece.edges, *piece.figures, seconds=piece.seconds)


def eval_stats(figures: dict[str, float] | None) -> EvalStats | None:
    """Return the figures of held-out edges."""
    return None if figures is None else EvalStats(**figures | {"count": int(figures["count"])})  # type: ignore[arg-type]


def _figures(stats: EvalStats | None) -> dict[str, float] | None:
    if stats is None:
        return None
    found = stats.to_json()
    return {"count": found["count"], **found["metrics"]}
