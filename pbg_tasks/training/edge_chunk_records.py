"""Conversion of an edge chunk's results to records and statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import EdgeChunkRecord
from pbg_tasks.formats.directory import BucketStats, EvalStats

if TYPE_CHECKING:
    from pbg_tasks.training.edge_chunks import EdgeChunkResult
    from pbg_tasks.training.schedule import Bucket


def edge_chunk_record(bucket: Bucket, result: EdgeChunkResult, *, rank: int, lease: int) -> EdgeChunkRecord:
    """Return the record of an edge chunk, finished or stopped."""
    stats, stopped = result.stats, result.stopped
    return EdgeChunkRecord(
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
        seconds=result.seconds,
    )


def continued(begun: EdgeChunkRecord, rest: EdgeChunkRecord) -> EdgeChunkRecord:
    """Join the records of an edge chunk trained under two leases."""
    edges = begun.edges + rest.edges
    figures = tuple(
        (first * begun.edges + second * rest.edges) / max(edges, 1)
        for first, second in zip(begun.figures, rest.figures, strict=True)
    )
    before = begun.before or rest.before  # the first may have been stopped while they were ranked
    update = {"edges": edges, "figures": figures, "before": before, "seconds": begun.seconds + rest.seconds}
    return rest.model_copy(update=update)


def bucket_stats(edge_chunk: EdgeChunkRecord) -> BucketStats:
    """Return an edge chunk's figures in the form of ``training_stats.json``."""
    return BucketStats(edge_chunk.edges, *edge_chunk.figures)


def eval_stats(figures: dict[str, float] | None) -> EvalStats | None:
    """Return the figures of held-out edges."""
    return None if figures is None else EvalStats(**figures | {"count": int(figures["count"])})  # type: ignore[arg-type]


def _figures(stats: EvalStats | None) -> dict[str, float] | None:
    if stats is None:
        return None
    found = stats.to_json()
    return {"count": found["count"], **found["metrics"]}
