"""Document of a training: the matrix of buckets, and curves.

The matrix shows progress; the curves are of committed iterations.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal

from pbg_tasks.formats.directory import IterationLine, parse_iteration_line, parse_stats_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pbg_tasks.checkpoint import PartialRecord
    from pbg_tasks.config.results import TrainResult
    from pbg_tasks.formats.directory import BucketStats
    from pbg_tasks.report.documents import Cell, IterationRow, Training
    from pbg_tasks.report.facts import RunFacts

Place = tuple[int, int, int]
Bucket = tuple[int, int]
SHADES = 8
"""Number of shades of the cells of a matrix."""
MOST_ROWS = 64
"""Most rows, and most columns, of a matrix. A cell of a larger one is a block of buckets."""


def training_document(run: RunFacts) -> Training:
    """Return the document of a run's training."""
    buckets, ends = _read(run.stats, source=f"{run.url}/checkpoint")
    iterations = [_iteration(place, buckets[place], ends.get(place)) for place in sorted(buckets)]
    sizes = run.results.bucket.trained if run.results.bucket is not None else []
    trained = run.results.train
    current = None if trained is not None else run.progress
    if current is not None:
        cells, epoch = _under_way(current), current.iteration.epoch_idx + 1
    elif buckets:
        last = max(buckets)
        cells, epoch = {key: _Worked(stats.loss) for key, stats in buckets[last]}, last[0] + 1
    elif trained is not None:  # the statistics of a long training are not read
        cells = {(lhs, rhs): _Worked() for lhs, row in enumerate(sizes) for rhs in range(len(row))}
        epoch, iterations = trained.epochs, _of_curve(trained)
    else:
        cells, epoch = {}, 0
    block = -(-max(len(sizes), *map(len, sizes)) // MOST_ROWS) if sizes else 1
    return {
        "state": "done" if trained is not None else "running" if run.stats or current is not None else "waiting",
        "epochs": run.spec.epochs if trained is None else trained.epochs,  # it may have stopped early
        "epoch": epoch,
        "done": sum(cell.state == "done" for cell in cells.values()),
        "buckets": sum(map(len, sizes)),
        "block": block,
        "matrix": list(_rows(*_merged(sizes, cells, block))),
        "iterations": iterations,
        "heard": run.heard,
    }


def _read(
    lines: Iterable[str], *, source: str
) -> tuple[dict[Place, list[tuple[Bucket, BucketStats]]], dict[Place, IterationLine]]:
    """Sort statistics by iteration: those of buckets, and of its end."""
    buckets: dict[Place, list[tuple[Bucket, BucketStats]]] = defaultdict(list)
    ends: dict[Place, IterationLine] = {}
    for text in lines:
        end = parse_iteration_line(text)
        if end is not None:
            before = ends.get(end.place, end)
            ends[end.place] = IterationLine(end.place, end.io or before.io, end.held_out or before.held_out)
            continue
        line = parse_stats_line(text, source=source)
        if line is not None:
            place = (line.epoch_idx, line.edge_path_idx, line.edge_chunk_idx)
            buckets[place].append(((line.lhs_partition, line.rhs_partition), line.stats))
    return buckets, ends


def _iteration(place: Place, buckets: Sequence[tuple[Bucket, BucketStats]], end: IterationLine | None) -> IterationRow:
    edges = sum(stats.count for _, stats in buckets)
    io = end.io if end is not None else None
    held_out = end.held_out if end is not None else None
    return {
        "epoch": place[0] + 1,
        "loss": sum(stats.loss * stats.count for _, stats in buckets) / max(edges, 1),
        "edges": edges,
        "mrr": held_out.mrr if held_out is not None else None,
        "seconds": io.seconds if io is not None else None,
        "waited": io.waited if io is not None else None,
    }


def _of_curve(trained: TrainResult) -> list[IterationRow]:
    """Return the iterations of a training by its losses alone."""
    chunks = max(1, len(trained.curve) // max(1, trained.epochs))
    unknown: IterationRow = {"epoch": 0, "loss": 0.0, "edges": 0, "mrr": None, "seconds": None, "waited": None}
    return [{**unknown, "epoch": at // chunks + 1, "loss": loss} for at, loss in enumerate(trained.curve)]


@dataclass(frozen=True, slots=True)
class _Worked:
    """Bucket that a rank has begun; ``rank`` while it is trained."""

    loss: float | None = None
    seconds: float | None = None
    rank: int | None = None
    state: Literal["active", "done"] = "done"


def _under_way(progress: PartialRecord) -> dict[Bucket, _Worked]:
    done = {(piece.lhs, piece.rhs): _Worked(piece.figures[0], piece.seconds) for piece in progress.done}
    active = {(lease.lhs, lease.rhs): _Worked(rank=lease.rank, state="active") for lease in progress.active}
    return {**active, **done}


def _merged(
    sizes: list[list[int]], cells: dict[Bucket, _Worked], block: int
) -> tuple[list[list[int]], dict[Bucket, _Worked]]:
    """Merge blocks of so many rows and columns, each into one cell."""
    if block == 1:
        return sizes, cells
    rows: list[list[int]] = []
    merged: dict[Bucket, _Worked] = {}
    left, right = range(len(sizes)), range(len(sizes[0]))
    for top in left[::block]:
        rows.append([])
        for first in right[::block]:
            inside = product(left[top : top + block], right[first : first + block])
            found = [(sizes[lhs][rhs], cells.get((lhs, rhs))) for lhs, rhs in inside]
            rows[-1].append(sum(edges for edges, _ in found))
            if (worked := _block(found)) is not None:
                merged[top // block, first // block] = worked
    return rows, merged


def _block(found: Sequence[tuple[int, _Worked | None]]) -> _Worked | None:
    """Merge buckets with their numbers of edges; None where none has begun."""
    begun = [(edges, each) for edges, each in found if each is not None]
    known = [(edges, each.loss) for edges, each in begun if each.loss is not None]
    edges = sum(edges for edges, _ in known)
    loss = sum(edges * loss for edges, loss in known) / edges if edges else None
    seconds = sum(each.seconds or 0.0 for _, each in begun)
    is_done = len(begun) == len(found) and all(each.state == "done" for _, each in begun)
    return _Worked(loss, seconds or None, state="done" if is_done else "active") if begun else None


def _rows(sizes: list[list[int]], cells: dict[Bucket, _Worked]) -> Iterator[list[Cell]]:
    """Yield the rows of cells; a darker shade is a higher loss."""
    losses = sorted(cell.loss for cell in cells.values() if cell.loss is not None)
    low, high = (losses[0], losses[-1]) if losses else (0.0, 0.0)
    step = (high - low) / SHADES or 1.0

    def cell(lhs: int, rhs: int, edges: int) -> Cell:
        worked = cells.get((lhs, rhs))
        if worked is None:
            return {"edges": edges, "state": "waiting", "loss": None, "seconds": None, "rank": None, "shade": None}
        return {
            "edges": edges,
            "state": worked.state,
            "loss": worked.loss,
            "seconds": worked.seconds,
            "rank": worked.rank,
            "shade": None if worked.loss is None else min(int((worked.loss - low) / step), SHADES - 1),
        }

    for lhs, row in enumerate(sizes):
        yield [cell(lhs, rhs, edges) for rhs, edges in enumerate(row)]
