"""Edges of a bucket, shuffled and cut into batches."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from pbg_tasks.errors import FormatError
from pbg_tasks.training.engine.lookup import Bags, Single

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sized

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.formats.edges import EdgeList, Features
    from pbg_tasks.model.families import Families
    from pbg_tasks.model.relations import Groups
    from pbg_tasks.training.engine.lookup import Lookup


@dataclass(frozen=True, slots=True)
class Batch:
    """Edges that are trained in one step.

    Their relations are trained alike.

    Attributes:
        lhs: rows of the B left-hand ends.
        rhs: rows of the right-hand ends.
        family: index of the family's first relation in the config.
        rel: int64 (B,), rows in the stacked parameters of the family; None where both questions have one operator.
        weight: float32 (B,), or None.
        ids: int64 (B,), ids of the relations, which a search for edges needs.
        like: index of a relation that is trained like all of them; None: the family's first.
        groups: groups of ``rel``, if they are known.
    """

    lhs: Lookup
    rhs: Lookup
    family: int
    rel: torch.Tensor | None = None
    weight: torch.Tensor | None = None
    ids: np.ndarray | None = None
    like: int | None = None
    groups: Groups | None = None

    @property
    def relation(self) -> int:
        """Index of the relation with the edges' types, weight and negatives."""
        return self.family if self.like is None else self.like

    def __len__(self) -> int:
        return len(self.lhs)


def check_edges(
    edges: EdgeList, config: ModelConfig, families: Families, lhs: Mapping[str, Sized], rhs: Mapping[str, Sized]
) -> None:
    """Check that the relations, ends and features of edges exist.

    Of the tables only the lengths are used.

    Raises:
        FormatError: an edge is out of range; the message names the first such column.
    """
    if not len(edges):
        return
    _check_range("rel", edges.rel, len(families), "relations")
    first = families.first[edges.rel]
    for side, ids, features, tables in (
        ("lhs", edges.lhs, edges.lhs_features, lhs),
        ("rhs", edges.rhs, edges.rhs_features, rhs),
    ):
        types = [getattr(relation, side) for relation in config.relations]
        for entity in sorted(set(types)):
            of_type = np.array([name == entity for name in types])[first]
            count = len(tables[entity])
            if config.entities[entity].featurized:
                _check_features(side, of_type, ids, features, count, entity)
            else:
                _check_range(side, ids if of_type.all() else ids[of_type], count, f"entities of type {entity!r}")


def _check_features(
    side: str, of_type: np.ndarray, ids: np.ndarray, features: Features | None, count: int, entity: str
) -> None:
    if not of_type.any():
        return
    if features is None or (ids[of_type] != -1).any():
        raise FormatError(f"edges: type {entity!r} is featurized, yet an edge has an id in {side} and no {side}d_data")
    chosen = features.data if of_type.all() else features.select(np.flatnonzero(of_type)).data
    _check_range(f"{side}d_data", chosen, count, f"features of type {entity!r}")


def _check_range(column: str, numbers: np.ndarray, count: int, what: str) -> None:
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < count):
        outlier = int(numbers.min() if numbers.min() < 0 else numbers.max())
        raise FormatError(f"edges: column {column} holds {outlier}, but there are {count} {what} in this bucket")


class EdgeSource(Protocol):
    """Source of batches of a bucket's edges."""

    def batch(self, kind: int, edge_chunk: slice) -> Batch:
        """Return the batch of a slice of the training order.

        All its edges are of one kind.
        """
        ...


class GatheredEdges:
    """Source that gathers the edges of a batch when it is trained.

    Args:
        edges: of the bucket.
        order: int64, the training order.
        config: the model.
        families: families of the relations.
    """

    def __init__(self, edges: EdgeList, order: np.ndarray, config: ModelConfig, families: Families) -> None:
        self._edges, self._order = edges, order
        self._config, self._families = config, families

    def batch(self, kind: int, edge_chunk: slice) -> Batch:
        """Return the batch of a slice of edges, all of one kind."""
        edges, chosen = self._edges, self._order[edge_chunk]
        config, families = self._config, self._families
        relation = config.relations[kind]
        return Batch(
            _ends(edges.lhs, edges.lhs_features, chosen, featurized=config.entities[relation.lhs].featurized),
            _ends(edges.rhs, edges.rhs_features, chosen, featurized=config.entities[relation.rhs].featurized),
            int(families.first[kind]),
            torch.from_numpy(families.row[edges.rel[chosen]]) if config.has_two_operators(relation) else None,
            None if edges.weight is None else torch.from_numpy(edges.weight[chosen]),
            edges.rel[chosen],
            kind,
        )


def batches(
    edges: EdgeList,
    config: ModelConfig,
    families: Families,
    generator: torch.Generator,
    source: Callable[[EdgeList, np.ndarray, ModelConfig, Families], EdgeSource] = GatheredEdges,
    *,
    skip: int = 0,
    at_once: Callable[[int, int], int] = lambda _number, _left: 1,
) -> Iterator[Batch]:
    """Shuffle edges and cut them into batches of at most ``batch_size``.

    A batch contains edges of relations that are trained alike. The kind of the next batch is drawn with a chance
    proportional to its remaining edges, as PBG does for its single relations. All is drawn here, before the first batch
    is made, so that other draws from the generator during the training do not change later batches.

    Args:
        edges: offsets into the tables.
        config: the model.
        families: families of the relations.
        generator: determines the order within and among kinds.
        source: makes the batches.
        skip: number of first batches to leave out.
        at_once: gives the number of batches that may be made as one, for how many were made and are left. Those that
            are made as one are whole, of one kind, and follow one another.
    """
    order = torch.randperm(len(edges), generator=generator).numpy()
    if not families.alike.any():
        starts = range(0, len(edges), config.batch_size)
        edge_chunks = [(0, slice(start, min(start + config.batch_size, len(edges)))) for start in starts]
    else:
        kinds = families.alike[edges.rel]
        order = order[np.argsort(kinds[order], kind="stable")]
        edge_chunks = list(_turns(kinds, config.batch_size, generator))
    made = source(edges, order, config, families)
    left = list(islice(edge_chunks, skip, None))
    return (made.batch(kind, edge_chunk) for kind, edge_chunk in _joined(left, config.batch_size, at_once))


def _joined(
    edge_chunks: list[tuple[int, slice]], size: int, at_once: Callable[[int, int], int]
) -> Iterator[tuple[int, slice]]:
    """Yield slices of edges, consecutive whole ones as one."""
    number = 0
    while number < len(edge_chunks):
        kind, joined = edge_chunks[number]
        end = min(len(edge_chunks), number + at_once(number, len(edge_chunks) - number))
        number += 1
        while number < end and edge_chunks[number] == (kind, slice(joined.stop, joined.stop + size)):
            joined = slice(joined.start, joined.stop + size)
            number += 1
        yield kind, joined


def _ends(ids: np.ndarray, features: Features | None, edge_chunk: np.ndarray, *, featurized: bool) -> Lookup:
    if not featurized or features is None:
        return Single(torch.from_numpy(ids[edge_chunk]))
    chosen = features.select(edge_chunk)
    return Bags(torch.from_numpy(chosen.offsets), torch.from_numpy(chosen.data))


def _turns(kinds: np.ndarray, size: int, generator: torch.Generator) -> Iterator[tuple[int, slice]]:
    """Yield (kind, slice of its edges) in PBG's random order.

    The edges must be sorted by kind.
    """
    left = np.bincount(kinds)
    starts = np.cumsum(left) - left
    chances = torch.from_numpy(left.astype(np.float64))
    for _ in range(int((-(-left // size)).sum())):
        kind = int(torch.multinomial(chances, 1, generator=generator))
        start, taken = int(starts[kind]), min(size, int(left[kind]))
        starts[kind] += taken
        left[kind] -= taken
        chances[kind] = float(left[kind])
        yield kind, slice(start, start + taken)
