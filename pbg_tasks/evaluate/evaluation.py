"""Evaluate a checkpoint on held-out edges."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import numpy as np
import torch

from pbg_tasks.evaluate.candidates import Candidates
from pbg_tasks.evaluate.filters import KnownAnswers, KnownPairs, Side
from pbg_tasks.evaluate.ids import Bucket, Numbering, Triples
from pbg_tasks.evaluate.metrics import figures, random_scorer
from pbg_tasks.evaluate.ranking import Queries, Ranks, block_rows, rank, tables
from pbg_tasks.evaluate.report import EvaluationReport
from pbg_tasks.model.numerics import use_fast_float32
from pbg_tasks.model.scoring import RelationScorer
from pbg_tasks.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pbg_tasks.config import Evaluation, ModelConfig
    from pbg_tasks.formats.edges import EdgeList

SIDES: tuple[Side, ...] = get_args(Side)


def evaluate_edges(
    config: ModelConfig,
    params: Mapping[str, np.ndarray],
    paths: Mapping[tuple[str, int], Path],
    counts: Mapping[str, list[int]],
    held_out: Mapping[Bucket, EdgeList],
    known: Callable[[], Iterator[tuple[Bucket, EdgeList]]],
    *,
    evaluation: Evaluation,
    relation_names: list[str],
    candidates: Candidates | None = None,
    threads: int = 1,
    memory_bytes: int = 1 << 30,
    seed: int = 0,
) -> tuple[EvaluationReport, Candidates | None]:
    """Rank held-out edges on both sides.

    Args:
        config: the model.
        params: shared parameters by PBG's path.
        paths: embeddings file of each (type, partition).
        counts: entities of each partition, by type.
        held_out: edges by bucket.
        known: every edge known to be true, by bucket; called once.
        evaluation: how many edges and candidates.
        relation_names: by relation id.
        candidates: a sample to use again.
        threads: CPU threads.
        memory_bytes: budget for the blocks.
        seed: of a new sample.

    Returns:
        The figures, and the sample of candidates when one was needed.
    """
    torch.set_num_threads(threads)
    use_fast_float32()
    numbering = Numbering(config, counts)
    asked = _limited(numbering.triples(held_out.items()), evaluation.max_edges)
    sample = candidates or Candidates.draw(counts, evaluation.max_candidates, seed)
    dimensions = {entity: config.entity_dimension(entity) for entity in config.entities}
    by_type = tables(paths, numbering.bases, dimensions)
    totals = {entity: numbering.total(entity) for entity in config.entities}
    known_answers = _known_answers(asked, numbering, known(), max(totals.values()))
    rows = block_rows(memory_bytes, config.dimension)
    results: dict[Side, list[tuple[np.ndarray, Ranks]]] = {side: [] for side in SIDES}
    work = 2 * len(asked) * max(totals.values())
    with Progress("evaluate", total=work, unit="scores") as progress:
        for index, chosen in _groups(config, asked):
            relation, group = config.relations[index], asked.select(chosen)
            scorer = RelationScorer(config, index, params)
            for side in SIDES:
                known_type, asked_type = (relation.rhs, relation.lhs) if side == "lhs" else (relation.lhs, relation.rhs)
                known_ends, true = (group.rhs, group.lhs) if side == "lhs" else (group.lhs, group.rhs)
                ends = by_type[known_type].gather(known_ends)
                queries = Queries(
                    scorer,
                    side,
                    scorer.queries(ends, torch.from_numpy(group.rel), predict=side),
                    true,
                    by_type[asked_type].gather(true),
                    known_answers[side].of(chosen, len(asked)),
                    sample.numbers(asked_type, numbering.bases[asked_type]) if sample else None,
                )
                ranks = rank(queries, by_type[asked_type], totals[asked_type], rows=rows, progress=progress)
                results[side].append((group.rel, ranks))
    return _report(results, evaluation, len(asked), totals, sample, relation_names), sample


def _known_answers(
    asked: Triples, numbering: Numbering, known: Iterator[tuple[Bucket, EdgeList]], entities: int
) -> dict[Side, KnownPairs]:
    """Stream the known edges by once, for both sides."""
    answers = {side: KnownAnswers(asked, side, entities) for side in SIDES}
    for piece in known:
        triples = numbering.triples([piece])
        for collected in answers.values():
            collected.add(triples)
    return {side: collected.pairs() for side, collected in answers.items()}


def _limited(triples: Triples, limit: int | None) -> Triples:
    """Return the first ``limit`` edges; within a bucket they lie in the order of their stable hash."""
    return triples if limit is None else triples.select(np.arange(min(limit, len(triples))))


def _groups(config: ModelConfig, asked: Triples) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (relation of the config, rows of its edges)."""
    if config.dynamic_relations:
        yield 0, np.arange(len(asked))
        return
    for index in np.unique(asked.rel):
        yield int(index), np.flatnonzero(asked.rel == index)


def _report(
    results: Mapping[Side, list[tuple[np.ndarray, Ranks]]],
    evaluation: Evaluation,
    edges: int,
    totals: Mapping[str, int],
    sample: Candidates | None,
    relation_names: list[str],
) -> EvaluationReport:
    def joined(name: str, sides: tuple[Side, ...] = SIDES) -> np.ndarray:
        return np.concatenate([getattr(ranks, name) for side in sides for _, ranks in results[side]])

    rel = np.concatenate([rel for side in SIDES for rel, _ in results[side]])
    filtered, among = joined("filtered"), joined("filtered_candidates")
    return EvaluationReport(
        split=evaluation.split,
        edges=edges,
        candidates={
            entity: len(sample.offset[entity]) if sample and entity in sample.offset else total
            for entity, total in totals.items()
        },
        sampled=sample is not None,
        raw=figures(joined("raw"), joined("raw_candidates")),
        filtered=figures(filtered, among),
        random=random_scorer(among),
        sides={side: figures(joined("filtered", (side,)), joined("filtered_candidates", (side,))) for side in SIDES},
        relations={
            relation_names[index]: figures(filtered[rel == index], among[rel == index]) for index in np.unique(rel)
        },
    )
