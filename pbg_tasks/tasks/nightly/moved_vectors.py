"""Tonight's model beside another one.

Measures how far the vectors moved, and finds the edges that explain it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import torch

from pbg_tasks.config.relations import relation_labels
from pbg_tasks.config.results import DriftFindings, PartitionResult
from pbg_tasks.evaluate.drift import (
    NEIGHBOURS,
    Spread,
    View,
    aligned,
    by_degree,
    cosines,
    draw_queries,
    neighbour_overlap,
)
from pbg_tasks.evaluate.ids import Numbering
from pbg_tasks.evaluate.relation_drift import End, RelationDrift, Surroundings
from pbg_tasks.evaluate.tables import EntityTable
from pbg_tasks.model.families import Families
from pbg_tasks.model.numerics import keep_freed_memory, use_fast_float32
from pbg_tasks.model.similarity import Similarity
from pbg_tasks.progress import say
from pbg_tasks.tasks.nightly.most_moved import EDGES_OF_ONE, explain
from pbg_tasks.tasks.runs.night import SPLITS, NightEdges

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.evaluate.candidates import Candidates
    from pbg_tasks.evaluate.local_model import LocalModel
    from pbg_tasks.tasks.context import RunContext
    from pbg_tasks.tasks.nightly.baseline import Baseline

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
        tonight: files of tonight's.
        directory: local one, for edges.
        candidates: the stored ones of the evaluation; None: there are none.
    """

    def __init__(
        self,
        run: RunContext,
        baseline: Baseline,
        tonight: LocalModel,
        directory: Path,
        candidates: Candidates | None,
    ) -> None:
        self._run, self._baseline, self._directory, self._sample = run, baseline, directory, candidates
        self._paths, self._params, self._relations = tonight.paths, tonight.params, tonight.relations
        self._families = Families(run.config, len(self._relations))
        self._numbering = Numbering(run.config, run.need(PartitionResult).counts, self._families)
        self._seed = run.spec.graph.train.seed
        torch.set_num_threads(1)
        use_fast_float32()
        keep_freed_memory()

    def findings(self) -> DriftFindings:
        """Return what moved."""
        types: dict[str, TypeFigures] = {}
        cosine: dict[str, np.ndarray] = {}
        overlap: dict[str, np.ndarray] = {}
        for entity in self._run.config.entities:
            types[entity], cosine[entity], overlap[entity] = self._of_type(entity)
        relations = RelationDrift(self._run.config, self._families, cosine, overlap)
        moved = self._most_moved(cosine)
        around = Surroundings(self._run.config, self._families, list(moved), EDGES_OF_ONE)
        for piece in NightEdges(self._run, self._directory).of(*SPLITS):
            edges = self._numbering.triples([piece])
            relations.add(edges)
            around.add(edges)
        known = self._baseline.known
        return DriftFindings.model_validate(
            {
                "release": self._baseline.release.seq,
                "snapshot": self._baseline.release.snapshot,
                "types": types,
                "relations": relations.to_json(relation_labels(self._run.config, self._relations)),
                "degree_deciles": {
                    entity: by_degree(relations.degree[entity][own], cosine[entity][own], overlap[entity][own])
                    for entity, own in known.items()
                },
                "most_moved": explain(self._run, self._baseline, self._relations, moved, around),
            }
        )

    def _of_type(self, entity: str) -> tuple[TypeFigures, np.ndarray, np.ndarray]:
        """Return the figures of a type, and each entity's cosine and overlap."""
        known, total = np.flatnonzero(self._baseline.known[entity]), self._numbering.total(entity)
        cosine, overlap = (np.full(total, np.nan, np.float32) for _ in range(2))
        turned = False
        queries = known[:0]
        if len(known):
            queries = draw_queries(known, self._seed)
            overlap[queries] = neighbour_overlap(*self._views(entity, self._candidates(entity, known)), queries)
            views = self._views(entity, known)
            rotation = None if self._baseline.continued else aligned(*views, known, self._seed)
            turned = rotation is not None
            if turned or self._baseline.continued:
                cosine = cosines(*views, total, rotation)
        spread, kept = Spread.of(cosine), Spread.of(overlap)
        say(f"drift: {entity}: mean cosine {spread.mean}, share of neighbours kept {kept.mean}")
        found: TypeFigures = {
            "common": len(known),
            "new": total - len(known),
            "gone": self._baseline.gone[entity],
            "aligned": turned,
            "cosine": asdict(spread),
            "overlap": {"k": NEIGHBOURS, "queries": len(queries), "mean": kept.mean, "p05": kept.p05},
        }
        return found, cosine, overlap

    def _views(self, entity: str, candidates: np.ndarray) -> tuple[View, View]:
        """Return embeddings of some entities: tonight's, and the other model's.

        Both models have to have these entities.
        """
        bases = self._numbering.bases[entity]
        partitions = range(len(bases) - 1)
        baseline, config = self._baseline, self._run.config
        now = EntityTable(
            [self._paths[entity, part] for part in partitions], bases, config.entity_dimension(entity), candidates
        )
        before = EntityTable(
            [baseline.paths[entity, part] for part in partitions],
            bases,
            baseline.config.entity_dimension(entity),
            candidates,
            baseline.rows[entity],
        )
        return (
            View(now, Similarity(config, self._params, entity)),
            View(before, Similarity(baseline.config, baseline.params, entity)),
        )

    def _candidates(self, entity: str, known: np.ndarray) -> np.ndarray:
        """Return the entities among which neighbours are looked for.

        They are the candidates of the evaluation, as far as both models have them.
        """
        stored = self._sample
        sample = stored.numbers(entity, self._numbering.bases[entity]) if stored else None
        return known if sample is None else np.intersect1d(known, sample, assume_unique=True)

    def _most_moved(self, cosine: dict[str, np.ndarray]) -> dict[End, float]:
        """Return the entities of the lowest cosines, lowest first."""
        found = {}
        for entity, values in cosine.items():
            there = np.flatnonzero(~np.isnan(values))
            for number in there[np.argsort(values[there], kind="stable")[:MOST_MOVED]].tolist():
                found[End(entity, number)] = float(values[number])
        return dict(sorted(found.items(), key=lambda each: (each[1], each[0]))[:MOST_MOVED])
