"""Edges of a bucket, shuffled and cut into batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from pbg_tasks.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.train.tables import Table


@dataclass(frozen=True, slots=True)
class Batch:
    """Edges that are trained in one step.

    Attributes:
        lhs: int64 (B,), offsets.
        rhs: int64 (B,), offsets.
        rel: int64 (B,) with dynamic relations; else the one relation's index.
        weight: float32 (B,), or None.
    """

    lhs: torch.Tensor
    rhs: torch.Tensor
    rel: torch.Tensor | int
    weight: torch.Tensor | None

    def __len__(self) -> int:
        return len(self.lhs)


def check_edges(
    edges: EdgeList,
    config: ModelConfig,
    relation_count: int,
    lhs: Mapping[str, Table],
    rhs: Mapping[str, Table],
) -> None:
    """Refuse edges whose relations or ends do not exist.

    Raises:
        FormatError: naming the first column with such an edge.
    """
    if not len(edges):
        return
    _check_range("rel", edges.rel, relation_count, "relations")
    for side, column, tables in (("lhs", edges.lhs, lhs), ("rhs", edges.rhs, rhs)):
        types = [getattr(relation, side) for relation in config.relations]
        for entity in sorted(set(types)):
            of_type = np.array([name == entity for name in types])
            chosen = column if of_type.all() else column[of_type[edges.rel]]
            _check_range(side, chosen, len(tables[entity]), f"entities of type {entity!r}")


def _check_range(column: str, numbers: np.ndarray, count: int, what: str) -> None:
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < count):
        outlier = int(numbers.min() if numbers.min() < 0 else numbers.max())
        raise FormatError(f"edges: column {column} holds {outlier}, but there are {count} {what} in this bucket")


def batches(edges: EdgeList, size: int, *, dynamic: bool, generator: torch.Generator) -> Iterator[Batch]:
    """Shuffle edges and cut them into batches of at most ``size``.

    Without dynamic relations a batch holds one relation, picked with a chance proportional to the edges it has left.
    """
    columns = [torch.from_numpy(column) for column in (edges.lhs, edges.rhs, edges.rel)]
    if edges.weight is not None:
        columns.append(torch.from_numpy(edges.weight))
    order = torch.randperm(len(edges), generator=generator)
    if not dynamic:
        order = order[torch.argsort(columns[2][order], stable=True)]
    lhs, rhs, rel, *weight = (column[order] for column in columns)
    cuts = _turns(edges.rel, size, generator) if not dynamic else _slices(len(edges), size)
    for relation, piece in cuts:
        kind = rel[piece] if relation is None else relation
        yield Batch(lhs[piece], rhs[piece], kind, weight[0][piece] if weight else None)


def _slices(count: int, size: int) -> Iterator[tuple[None, slice]]:
    for start in range(0, count, size):
        yield None, slice(start, start + size)


def _turns(rel: np.ndarray, size: int, generator: torch.Generator) -> Iterator[tuple[int, slice]]:
    """Yield pieces of edges that are sorted by relation, in PBG's random order of relations."""
    left = np.bincount(rel)
    starts = np.cumsum(left) - left
    chances = torch.from_numpy(left.astype(np.float64))
    for _ in range(int((-(-left // size)).sum())):
        relation = int(torch.multinomial(chances, 1, generator=generator))
        start, taken = int(starts[relation]), min(size, int(left[relation]))
        starts[relation] += taken
        left[relation] -= taken
        chances[relation] = float(left[relation])
        yield relation, slice(start, start + taken)
