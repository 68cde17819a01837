"""Tonight's model beside another one.

Measures how far the vectors moved, and finds the edges that explain it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from pbg_tasks.config.relations import relation_labels
from pbg_tasks.config.results import DriftFindings, PartitionResult
from pbg_tasks.evaluate.drift import (
    ALIGNED_ROWS,
    NEIGHBOURS,
    QUERIES,
    Nearest,
    NeighbourSearch,
    Spread,
    View,
    aligned,
    by_degree,
    draw,
    neighbour_overlap,
)
from pbg_tasks.evaluate.ids import Numbering, are_among
from pbg_tasks.evaluate.partition_drift import PartitionDrift
from pbg_tasks.evaluate.relation_drift import End, RelationDrift, Surroundings
from pbg_tasks.evaluate.tables import EntityTable
from pbg_tasks.formats.memory import keep_freed_memory
from pbg_tasks.model.arrays import likeness
from pbg_tasks.model.families import Families
from pbg_tasks.progress import say
from pbg_tasks.tasks.nightly.most_moved import EDGES_OF_ONE, explain
from pbg_tasks.tasks.runs.night import SPLITS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pbg_tasks.evaluate.candidates import Candidates
    from pbg_tasks.evaluate.local_model import LocalModel
    from pbg_tasks.tasks.context import RunContext
    from pbg_tasks.tasks.nightly.baseline import Baseline
    from pbg_tasks.tasks.runs.night import NightRun
    from pbg_tasks.tasks.runs.part_files import Key, PartFiles

MOST_MOVED = 20


class OverlapFigures(TypedDict):
    """The share of the ``k`` nearest neighbours that entities kept."""

    k: int
    queries: int
    mean: float | None
    p05: float | None


class TypeFigures(TypedDict):
    """Movement of an entity type; ``aligned``: after a rotation."""

    common: int
    new: int
    gone: int
    aligned: bool
    cosine: dict[str, float | None]
    overlap: OverlapFigures


class Comparison:
    """Tonight's model beside another one.

    Args:
        run: of tonight.
        baseline: the other one.
        relations: names of tonight's.
        night: tonight's edges.
        candidates: the stored ones of the evaluation; None: there are none.
    """

    def __init__(
        self, run: RunContext, baseline: Baseline, relations: list[str], night: NightRun, candidates: Candidates | None
    ) -> None:
        self._run, self._baseline = run, baseline
        self._night, self._sample = night, candidates
        self._relations, self._families = relations, Families(run.config, len(relations))
        self._numbering = Numbering(run.config, run.need(PartitionResult).counts, self._families)

    def findings(self, drifts: Iterable[tuple[Key, PartitionDrift]]) -> DriftFindings:
        """Return what moved.

        Args:
            drifts: of every partition with entities that both models know, those of a type in order.
        """
        cosine, overlap = self._unmeasured(), self._unmeasured()
        nearest: dict[str, tuple[Nearest, Nearest]] = {}
        comparable = set()
        for (entity, partition), found in drifts:
            own = slice(*self._numbering.bases[entity][partition : partition + 2])
            if len(found.cosine):
                comparable.add(entity)
                cosine[entity][own][self._baseline.known[entity][own]] = found.cosine
            both = found.now, found.before
            before = nearest.get(entity)
            nearest[entity] = both if before is None else (before[0].joined(both[0]), before[1].joined(both[1]))
        types = {
            entity: self._of_type(entity, values, overlap[entity], nearest.get(entity), comparable=entity in comparable)
            for entity, values in cosine.items()
        }
        relations = RelationDrift(self._run.config, self._families, cosine, overlap)
        moved = self._most_moved(cosine)
        around = Surroundings(self._run.config, self._families, list(moved), EDGES_OF_ONE)
        for piece in self._night.edges(*SPLITS):
            edges = self._numbering.triples([piece])
            relations.add(edges)
            around.add(edges)
        return DriftFindings.model_validate(
            {
                "release": self._baseline.release.seq,
                "snapshot": self._baseline.release.snapshot,
                "types": types,
                "relations": relations.to_json(relation_labels(self._run.config, self._relations)),
                "degree_deciles": {
                    entity: by_degree(relations.degree[entity][own], cosine[entity][own], overlap[entity][own])
                    for entity, own in self._baseline.known.items()
                },
                "most_moved": explain(self._run, self._baseline, self._relations, moved, around),
            }
        )

    def _unmeasured(self) -> dict[str, np.ndarray]:
        """Return NaN for every entity, by type."""
        return {
            entity: np.full(self._numbering.total(entity), np.nan, np.float32) for entity in self._run.config.entities
        }

    def _of_type(
        self,
        entity: str,
        cosine: np.ndarray,
        overlap: np.ndarray,
        nearest: tuple[Nearest, Nearest] | None,
        *,
        comparable: bool,
    ) -> TypeFigures:
        """Return a type's figures, and set the overlap of queries."""
        known = self._baseline.known[entity]
        common, total = int(known.sum()), len(known)
        queries = drift_queries(self._run, known)
        if nearest is not None:
            drawn = _sampled(self._sample, entity, self._numbering.bases[entity])
            overlap[queries] = neighbour_overlap(*nearest, common if drawn is None else int(known[drawn].sum()))
        spread, kept = Spread.of(cosine), Spread.of(overlap)
        moved = (
            "no cosine, as too few entities are in both or the dimension changed"
            if spread.mean is None
            else f"mean cosine {spread.mean}"
        )
        say(f"drift: {entity}: {moved}; share of neighbours kept {'not known' if kept.mean is None else kept.mean}")
        return {
            "common": common,
            "new": total - common,
            "gone": self._baseline.gone[entity],
            "aligned": comparable and not self._baseline.continued,
            "cosine": asdict(spread),
            "overlap": {"k": NEIGHBOURS, "queries": len(queries), "mean": kept.mean, "p05": kept.p05},
        }

    def _most_moved(self, cosine: dict[str, np.ndarray]) -> dict[End, float]:
        """Return the entities of the lowest cosines, lowest first."""
        found = {}
        for entity, values in cosine.items():
            for number in _lowest(values, MOST_MOVED).tolist():
                found[End(entity, number)] = float(values[number])
        return dict(sorted(found.items(), key=lambda each: (each[1], each[0]))[:MOST_MOVED])


def partition_drifts(
    run: RunContext,
    baseline: Baseline,
    tonight: LocalModel,
    candidates: Candidates | None,
    share: Mapping[str, Collection[int]] | None = None,
) -> Iterator[tuple[Key, PartitionDrift]]:
    """Compare the vectors of two models, partition by partition.

    Of partitions outside of the share, the rows of ``with_compared_rows`` are read alone.

    Args:
        run: of tonight.
        baseline: the other model.
        tonight: files of tonight's.
        candidates: the stored ones of the evaluation; None: there are none.
        share: partitions, by type; None: all.
    """
    keep_freed_memory()
    bases_of = Numbering(run.config, tonight.counts, Families(run.config, len(tonight.relations))).bases
    for entity, partitions in compared_partitions(baseline, tonight.counts, share).items():
        bases, known = bases_of[entity], baseline.known[entity]
        views = _views(run, baseline, tonight, entity, bases)
        queries = drift_queries(run, known)
        searches = [NeighbourSearch(view, queries) for view in views]
        rotation = None if baseline.continued else aligned(*views, _fitted(run, known))
        drawn = _sampled(candidates, entity, bases)
        comparable = baseline.continued or rotation is not None
        for partition in partitions:
            numbers = bases[partition] + np.flatnonzero(known[bases[partition] : bases[partition + 1]])
            if drawn is not None and not comparable:  # the others would be read for nothing
                numbers = numbers[are_among(numbers, drawn)]
            now, before = (view.among(numbers, partition) for view in views)
            found = PartitionDrift.of(now, before, searches, comparable=comparable, rotation_DD=rotation, among=drawn)
            yield (entity, partition), found


def compared_partitions(
    baseline: Baseline, counts: Mapping[str, Sequence[int]], share: Mapping[str, Collection[int]] | None = None
) -> dict[str, list[int]]:
    """Return the partitions whose vectors are compared, by type.

    A type is left out where no entity is known to both models.
    """
    found = {}
    for entity, listed in counts.items():
        partitions = [part for part in range(len(listed)) if share is None or part in share[entity]]
        if partitions and baseline.known[entity].any():
            found[entity] = partitions
    return found


def with_compared_rows(run: RunContext, part: PartFiles, baseline: Baseline) -> PartFiles:
    """Add the rows that a part reads for the drift.

    They are the queries and, where vectors are rotated, the sample for that. Without partitions of its own, a part
    compares none.

    Args:
        run: of tonight.
        part: files that it reads.
        baseline: the other model, whose ``known`` is set.
    """
    if not any(part.whole.values()):
        return part
    found = {}
    for entity, listed in run.need(PartitionResult).counts.items():
        bases, known = np.concatenate(([0], np.cumsum(listed))), baseline.known[entity]
        rows = [drift_queries(run, known)] + ([] if baseline.continued else [_fitted(run, known)])
        numbers = np.sort(np.concatenate(rows))
        for partition, own in enumerate(np.split(numbers, np.searchsorted(numbers, bases[1:-1]))):
            found[entity, partition] = own - bases[partition]
    return part.plus(found)


def _lowest(values: np.ndarray, count: int) -> np.ndarray:
    """Return the places of the lowest figures, lowest first.

    Of equal ones the first come first; figures that are NaN are left out.
    """
    there = np.flatnonzero(~np.isnan(values))
    if len(there) > count:  # to order all of them takes ten times as long
        there = there[values[there] <= np.partition(values[there], count - 1)[count - 1]]
    return there[np.argsort(values[there], kind="stable")[:count]]


def drift_queries(run: RunContext, known: np.ndarray) -> np.ndarray:
    """Return the entities whose neighbours are compared, ascending."""
    return draw(known, QUERIES, run.spec.graph.train.seed)


def _fitted(run: RunContext, known: np.ndarray) -> np.ndarray:
    """Return the entities to which a rotation is fitted, ascending."""
    return draw(known, ALIGNED_ROWS, run.spec.graph.train.seed)


def _sampled(candidates: Candidates | None, entity: str, bases: np.ndarray) -> np.ndarray | None:
    """Return the candidates of neighbours; None for all entities."""
    return candidates.numbers(entity, bases) if candidates else None


def _views(
    run: RunContext, baseline: Baseline, tonight: LocalModel, entity: str, bases: np.ndarray
) -> tuple[View, View]:
    """Return embeddings of a type, without candidates: tonight's, and the other model's."""
    partitions, nothing = range(len(bases) - 1), np.empty(0, np.int64)
    config = run.config
    now = EntityTable(
        [tonight.paths[entity, part] for part in partitions], bases, config.entity_dimension(entity), nothing
    )
    before = EntityTable(
        [baseline.paths[entity, part] for part in partitions],
        bases,
        baseline.config.entity_dimension(entity),
        nothing,
        baseline.rows[entity],
    )
    return (
        View(now, likeness(config, tonight.params, entity)),
        View(before, likeness(baseline.config, baseline.params, entity)),
    )
