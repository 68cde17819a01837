"""Edges of a bucket, shuffled and cut into batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.formats.edges import EdgeList


@dataclass(frozen=True, slots=True)
class Batch:
    """Edges that are trained in one step.

    Attributes:
        lhs: int64 (B,), offsets.
        rhs: int64 (B,), offsets.
        rel: int64 (B,) with dynamic relations; else the one relation's id.
        weight: float32 (B,), or None.
    """

    lhs: torch.Tensor
    rhs: torch.Tensor
    rel: torch.Tensor | int
    weight: torch.Tensor | None

    def __len__(self) -> int:
        return len(self.lhs)


def batches(edges: EdgeList, size: int, *, dynamic: bool, generator: torch.Generator) -> Iterator[Batch]:
    """Shuffle edges and cut them; without dynamic relations a batch holds one relation."""
    columns = [torch.from_numpy(column) for column in (edges.lhs, edges.rhs, edges.rel)]
    if edges.weight is not None:
        columns.append(torch.from_numpy(edges.weight))
    order = torch.randperm(len(edges), generator=generator)
    lhs, rhs, rel, *weight = (column[order] for column in columns)
    if dynamic:
        for start in range(0, len(edges), size):
            piece = slice(start, start + size)
            yield Batch(lhs[piece], rhs[piece], rel[piece], weight[0][piece] if weight else None)
        return
    by_relation = torch.argsort(rel, stable=True)
    counts = torch.bincount(rel) if len(rel) else rel
    ends = counts.cumsum(0)
    starts = ends - counts
    for relation, start, stop in _turns(starts.tolist(), ends.tolist(), size, generator):
        piece_of = by_relation[start:stop]
        yield Batch(lhs[piece_of], rhs[piece_of], relation, weight[0][piece_of] if weight else None)


def _turns(
    starts: list[int], ends: list[int], size: int, generator: torch.Generator
) -> Iterator[tuple[int, int, int]]:
    """Pick the next relation with a chance proportional to the edges it has left, until none is left."""
    left = torch.tensor([end - start for start, end in zip(starts, ends, strict=True)], dtype=torch.float64)
    while left.sum() > 0:
        relation = int(torch.multinomial(left, 1, generator=generator))
        start = starts[relation]
        stop = min(start + size, ends[relation])
        starts[relation] = stop
        left[relation] = ends[relation] - stop
        yield relation, start, stop
