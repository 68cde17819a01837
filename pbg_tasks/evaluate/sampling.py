"""Sample of the held-out edges that an evaluation ranks.

It is ranked in rounds that grow until the gate can decide. The sample follows the order of the edges within their
buckets, which is that of a stable hash of their names: the same split gives the same sample, and the rounds of a night
are prefixes of one order. Each prefix has about the same share of every relation, so that a relation is there from the
first round on unless it has too few edges for it. Relations with few edges get more of their own; these count in the
figures of relations only, so that the figures over all edges stay those of a plain sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.config.gates import EVERY_OTHER, RelationFloor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pbg_tasks.config import Gates
    from pbg_tasks.config.limits import AtLeast, AtMost
    from pbg_tasks.evaluate.compared_model import ComparedModel
    from pbg_tasks.evaluate.ids import Bucket
    from pbg_tasks.formats.edges import EdgeList

ROUND_EDGES = 1024
"""Number of edges of the first round. Each further round doubles the number of ranked edges."""
STANDARD_ERRORS = 3.0
"""Distance of a mean from its limit that decides, in standard errors. It is more than the 2 of a single look, since
every round looks again.
"""
FIRST_PAIRS = 512
"""Number of edges that another model is asked first."""
INTERVAL_ERRORS = 2.0
"""Distance of a mean above its limit that decides where the gate judges the upper end of its interval, in standard
errors. The end is two further ones away, so the gate is four from the other answer.
"""
_FEWEST = 2  # least number of values that have a spread


@dataclass(frozen=True, slots=True)
class Ratios:
    """Limits of the MRR of tonight's model, as shares of another model's.

    Attributes:
        block: that refuse a night. Edges are asked until these are clear.
        warn: that warn of one. They may stay unclear once the first edges were asked: ranking all edges costs more than
            a warning too many or too few.
        end: that refuse a night as ``block`` does, by the upper end of the interval of 95 %.
    """

    block: tuple[float, ...] = ()
    warn: tuple[float, ...] = ()
    end: tuple[float, ...] = ()

    @classmethod
    def of(cls, limit: AtLeast | AtMost, share: Callable[[float], float] = float) -> Ratios:
        """Return the limits of a gate; ``share`` turns one into a share."""
        block, warn = (() if each is None else (share(each),) for each in (limit.block, limit.warn))
        return cls(block, warn)

    def __add__(self, other: Ratios) -> Ratios:
        return Ratios(self.block + other.block, self.warn + other.warn, self.end + other.end)

    def decided(self, ours: np.ndarray, theirs: np.ndarray, first: int) -> bool:
        """Return whether the mean of ``ours`` is clear of the limits.

        Args:
            ours: float64 (N,), reciprocal ranks by tonight's model.
            theirs: float64 (N,), of the same edges by another one.
            first: number of edges after which ``warn`` may stay unclear.
        """
        limits = self.block if len(ours) >= first else self.block + self.warn
        return all(_clear(ours - limit * theirs, 0) for limit in limits) and all(
            _clear(ours - limit * theirs, 0, above=INTERVAL_ERRORS) for limit in self.end
        )


_NO_WORSE = Ratios(end=(1.0,))


@dataclass(frozen=True, slots=True)
class Sample:
    """Held-out edges to rank.

    Attributes:
        edges: by bucket, in the order of their hash.
        order: int64 (B,), rows of ``edges``, one bucket after the other, in the order in which they count over all
            relations.
        extra: int64 (E,), rows that count only in the figures of their relation.
        total: number of held-out edges.
    """

    edges: Mapping[Bucket, EdgeList]
    order: np.ndarray
    extra: np.ndarray
    total: int

    @classmethod
    def of(cls, held_out: Mapping[Bucket, EdgeList], limit: int | None, *, relation_edges: int = 0) -> Sample:
        """Choose at most ``limit`` edges.

        Args:
            held_out: edges by bucket, each in the order of their hash.
            limit: largest number of edges; None: all.
            relation_edges: least number of edges of each relation, where it has them. Relations take at most half of
                ``limit`` for that: one edge of each first, then a second one, and so on.
        """
        total = sum(map(len, held_out.values()))
        if limit is None or total <= limit:
            return cls(held_out, np.arange(total), np.empty(0, np.int64), total)
        # By the relative place of each edge in its bucket, between 0 and 1.
        places = [(np.arange(len(edges)) + 0.5) / max(len(edges), 1) for edges in held_out.values()]
        order = np.argsort(np.concatenate(places), kind="stable")
        every_rel = np.concatenate([edges.rel for edges in held_out.values()])
        within, sizes = _within_relations(every_rel[order])
        order = order[np.argsort((within + 0.5) / sizes, kind="stable")]
        rel = every_rel[order]
        counted, extra = _chosen(rel, limit, relation_edges)
        chosen = np.sort(np.concatenate((order[counted], order[extra])))
        ends = np.searchsorted(chosen, np.cumsum([len(edges) for edges in held_out.values()]))
        firsts = np.cumsum([0, *map(len, held_out.values())])[:-1]
        parts = zip(held_out.items(), np.split(chosen, ends[:-1]), firsts, strict=True)
        edges = {bucket: listed.select(rows - first) for (bucket, listed), rows, first in parts}
        rows_counted, rows_extra = (np.searchsorted(chosen, order[rows]) for rows in (counted, extra))
        return cls(edges, rows_counted, rows_extra, total)

    def rounds(self) -> Iterator[np.ndarray]:
        """Yield the rows that each round ranks anew: int64.

        A split of which no edge is left out has one round.
        """
        stop = min(ROUND_EDGES, len(self.order)) if self.total > len(self.order) else len(self.order)
        yield np.concatenate((self.order[:stop], self.extra))
        while stop < len(self.order):
            yield self.order[stop : 2 * stop]
            stop *= 2


def _chosen(rel: np.ndarray, limit: int, relation_edges: int) -> tuple[np.ndarray, np.ndarray]:
    """Return places that count over all relations, and further places.

    Args:
        rel: int64 (N,), relations of all edges, in the order.
        limit: most places in all.
        relation_edges: see ``Sample.of``.
    """
    within, _ = _within_relations(rel)
    wanted = np.flatnonzero(within < relation_edges)
    beyond = wanted[wanted >= limit // 2]
    extra = beyond[np.argsort(within[beyond], kind="stable")[: limit // 2]]
    is_extra = np.zeros(len(rel), bool)
    is_extra[extra] = True
    # The longest prefix of the order that fits beside the extra edges. Extra edges within the prefix are dropped from
    # them.
    stop = int(np.searchsorted(np.cumsum(~is_extra), limit - len(extra), side="right"))
    return np.arange(stop), np.sort(extra[extra >= stop])


def _within_relations(rel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the place of each edge among those of its relation.

    Args:
        rel: int64 (N,), relations of all edges.

    Returns:
        int64 (N,), the places, from 0; and int64 (N,), the number of edges of each one's relation.
    """
    by_relation = np.argsort(rel, kind="stable")
    sizes = np.unique(rel, return_counts=True)[1]
    places = np.arange(len(rel)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    within, of_each = np.empty(len(rel), np.int64), np.empty(len(rel), np.int64)
    within[by_relation], of_each[by_relation] = places, np.repeat(sizes, sizes)
    return within, of_each


def relation_edges(gates: Gates) -> int:
    """Return the number of edges of a relation that its floor needs."""
    floors = gates.relations.values()
    return max((floor.min_edges for floor in floors), default=RelationFloor(min_mrr=0).min_edges)


def floors_decide(
    gates: Gates, rel: np.ndarray, ranked: np.ndarray, reciprocal: np.ndarray, labels: Sequence[str]
) -> bool:
    """Return whether each relation with a floor can be judged.

    Args:
        gates: of the graph.
        rel: int64 (N,), relation of each edge of the sample.
        ranked: int64 (M,), rows of the edges that were ranked.
        reciprocal: float64 (M,), their reciprocal ranks by tonight's model.
        labels: names of the relations.

    Returns:
        True where each has ``min_edges`` ranked edges, whose mean is clear of the floor, or all that the sample has.
    """
    floors = [gates.relations.get(label, gates.relations.get(EVERY_OTHER)) for label in labels]
    least = np.array([0 if floor is None else floor.min_edges for floor in floors])
    limit = np.array([0.0 if floor is None else floor.min_mrr for floor in floors])
    there = np.bincount(rel, minlength=len(labels))
    done, total, squares = (np.bincount(rel[ranked], each, len(labels)) for each in (None, reciprocal, reciprocal**2))
    mean = total / np.maximum(done, 1)
    variance = np.maximum(squares - done * mean**2, 0) / np.maximum(done - 1, 1)
    clear = np.abs(mean - limit) > STANDARD_ERRORS * np.sqrt(variance / np.maximum(done, 1))
    judged = (done >= least) & ((limit == 0) | (clear & (done >= _FEWEST)))
    return bool((judged | (done == there)).all())


@dataclass(frozen=True, slots=True)
class Reciprocals:
    """Reciprocal filtered ranks of the same edges.

    Each is the mean of both sides.

    Attributes:
        ranked: float64 (N,), by tonight's model.
        popular: float64 (N,), by popularity; None where it was not counted.
        candidate: float64 (M,), by tonight's model on the edges that another model was asked, too; None without one.
        current: float64 (M,), by that other model.
        best: the same two by tonight's model and by that of the best release; None without one.
        replaced: same by that of a release of other edges, whose place tonight's model would take.
    """

    ranked: np.ndarray
    popular: np.ndarray | None
    candidate: np.ndarray | None
    current: np.ndarray | None
    best: tuple[np.ndarray, np.ndarray] | None = None
    replaced: tuple[np.ndarray, np.ndarray] | None = None

    def decide(self, gates: Gates, *, continued: bool = False) -> bool:
        """Return whether these ranks are far enough from a gate's limits.

        Args:
            gates: of the graph.
            continued: whether tonight's vectors started from those of ``current``.
        """
        if gates.min_mrr and not _clear(self.ranked, gates.min_mrr):
            return False
        popularity = Ratios.of(gates.min_over_popularity)
        if self.popular is not None and not popularity.decided(self.ranked, self.popular, ROUND_EDGES):
            return False
        pairs: list[tuple[np.ndarray, np.ndarray, Ratios]] = []
        if self.candidate is not None and self.current is not None:
            pairs.append((self.candidate, self.current, current_ratios(gates, continued=continued)))
        if self.best is not None:
            pairs.append((*self.best, trend_ratios(gates)))
        if self.replaced is not None:
            pairs.append((*self.replaced, drop_ratios(gates)))
        return all(pair_decides(*pair, gates) for pair in pairs)


def ratios_beside(gates: Gates | None, compared: ComparedModel | None, best: ComparedModel | None) -> Ratios:
    """Return the limits that the MRR beside another model's has to decide.

    Args:
        gates: of the graph; None: none.
        compared: the model of the release before, where that is the other one.
        best: that of the best release; the same one as ``compared`` where it is both.
    """
    ratios = Ratios()
    if gates is not None and best is not None and (compared is None or compared is best):
        ratios += trend_ratios(gates)
    if gates is not None and compared is not None:
        ratios += current_ratios(gates, continued=compared.continued)
    return ratios


def replaced_ratios(gates: Gates | None, replaced: ComparedModel | None) -> Ratios:
    """Return the limits beside the release whose place a model would take.

    One that differs by settings alone has to be no worse; with other edges it may fall as far as any night.
    """
    return _NO_WORSE if gates is None or replaced is None or replaced.repeats else drop_ratios(gates)


def current_ratios(gates: Gates, *, continued: bool) -> Ratios:
    """Return the limits beside the release before.

    Args:
        gates: of the graph.
        continued: whether tonight's vectors started from its.
    """
    return drop_ratios(gates) + (start_ratios(gates) if continued else Ratios())


def drop_ratios(gates: Gates) -> Ratios:
    """Return the limits of ``max_mrr_drop`` as shares of the MRR before."""
    return Ratios(block=(1 - gates.max_mrr_drop,))


def trend_ratios(gates: Gates) -> Ratios:
    """Return the limits of ``max_trend_drop`` as shares of the best MRR."""
    return Ratios.of(gates.max_trend_drop, lambda drop: 1 - drop)


def start_ratios(gates: Gates) -> Ratios:
    """Return the limits of ``min_over_start``, shares of the MRR before training."""
    judged = Ratios.of(gates.min_over_start)
    return Ratios(warn=judged.warn, end=judged.block)


def pair_decides(ours: np.ndarray, theirs: np.ndarray, ratios: Ratios, gates: Gates) -> bool:
    """Return whether the ranks of two models are clear of limits.

    Args:
        ours: float64 (N,), reciprocal ranks by tonight's model.
        theirs: float64 (N,), by the other one, of the same edges.
        ratios: limits of tonight's model.
        gates: of the graph.
    """
    return len(ours) >= gates.min_common_edges and ratios.decided(ours, theirs, FIRST_PAIRS)


def _clear(values: np.ndarray, limit: float, above: float = STANDARD_ERRORS) -> bool:
    """Return whether a mean is some standard errors from a limit.

    Args:
        values: float64 (N,).
        limit: that is judged.
        above: least number of standard errors of a mean above it.
    """
    if len(values) < _FEWEST:
        return False
    error, distance = values.std(ddof=1) / len(values) ** 0.5, values.mean() - limit
    return bool(distance > above * error or -distance > STANDARD_ERRORS * error)
