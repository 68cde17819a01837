"""What training a piece showed, as records and statistics have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import PieceRecord
from pbg_tasks.formats.directory import BucketStats, EvalStats
from pbg_tasks.train.pieces import PieceResult

if TYPE_CHECKING:
    from pbg_tasks.train.schedule import Bucket


def piece_record(bucket: Bucket, result: PieceResult, *, rank: int, lease: int) -> PieceRecord:
    """Return the record of a piece that a rank trained, to its end or not."""
    stats, stopped = result.stats, result.stopped
    return PieceRecord(
        lhs=bucket.lhs,
        rhs=bucket.rhs,
        rank=rank,
        lease=lease,
        edges=stats.count,
        held_out=0 if stopped else result.held_out,
        batches=stopped.batches if stopped else 0,
        drawn=stopped.drawn if stopped else "",
        figures=(stats.loss, stats.reg, stats.violators_lhs, stats.violators_rhs),
        before=_figures(result.before),
        after=_figures(result.after),
        seconds=stats.seconds,
    )


def result_of(piece: PieceRecord) -> PieceResult:
    """Return what training a piece to its end showed, from its record."""
    return PieceResult(bucket_stats(piece), eval_stats(piece.before), eval_stats(piece.after), piece.held_out)


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
