"""Evaluation of a checkpoint on held-out edges."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import numpy as np
import torch

from pbg_tasks.config.relations import relation_labels
from pbg_tasks.errors import ConfigError
from pbg_tasks.evaluate.candidates import Candidates, eligible
from pbg_tasks.evaluate.ids import Bucket, Numbering, Triples, by_types
from pbg_tasks.evaluate.one_side import OneSide
from pbg_tasks.evaluate.paired_comparison import PairedRanks, mean_interval, mean_reciprocal
from pbg_tasks.evaluate.questions import Side
from pbg_tasks.evaluate.ranking import Model
from pbg_tasks.evaluate.report import EvaluationReport
from pbg_tasks.evaluate.rounds import PairedRounds, RankedRounds
from pbg_tasks.evaluate.sampling import (
    Ratios,
    Sample,
    current_ratios,
    floors_have_edges,
    relation_edges,
    trend_ratios,
)
from pbg_tasks.evaluate.tables import Budget, EntityTable
from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.model.families import Families
from pbg_tasks.model.numerics import keep_freed_memory, use_fast_float32
from pbg_tasks.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pbg_tasks.config import Evaluation, Gates, ModelConfig
    from pbg_tasks.evaluate.compared_model import ComparedModel
    from pbg_tasks.evaluate.local_model import LocalModel

    EdgeStream = Callable[[], Iterator[tuple[Bucket, EdgeList]]]

SIDES: tuple[Side, ...] = get_args(Side)
PIECE_EDGES = 1 << 20
"""Number of edges that are processed together, of a bucket that may hold all edges."""


def evaluate_edges(
    ranked: LocalModel,
    held_out: Mapping[Bucket, EdgeList],
    known: EdgeStream,
    *,
    evaluation: Evaluation,
    train: EdgeStream | None = None,
    candidates: Candidates | None = None,
    compared: ComparedModel | None = None,
    best: ComparedModel | None = None,
    gates: Gates | None = None,
    threads: int = 1,
    memory_bytes: int = 1 << 30,
    seed: int = 0,
    interval: bool = False,
    tell_each: Callable[[np.ndarray], object] | None = None,
) -> tuple[EvaluationReport, Candidates | None]:
    """Rank held-out edges on both sides.

    Args:
        ranked: the model; ``evaluation.exclude_self`` needs its loops.
        held_out: edges by bucket.
        known: every edge known to be true, by bucket; called once. A bucket may come in several pieces.
        evaluation: numbers of edges and candidates.
        train: training edges, in the same way. They count as known, so ``known`` need not repeat them, and the
            popularity baseline is made of them.
        candidates: a sample to use again, for the types that it has.
        compared: another model that ranks the same edges, as far as it knows their ends and relations.
        best: a third one; where it is ``compared``, that ranks the edges once.
        gates: limits about which the figures have to decide: a sample of the edges is ranked in rounds, until they do;
            None: all of them are ranked.
        threads: CPU threads.
        memory_bytes: budget for queries, candidates and scores; held-out edges and known answers come on top.
        seed: of what is newly sampled.
        interval: give the interval of the MRR also where no edge is left out.
        tell_each: is given the mean filtered reciprocal rank of both sides of each counted edge, float64 (N,); in the
            order of ``held_out`` where no edge is left out.

    Returns:
        The figures, and the sample of candidates when one was needed.

    Raises:
        ConfigError: ``evaluation.exclude_self``, and it is unknown which relations had loops.
        FormatError: an embeddings file is damaged, of another shape, or not finite.
    """
    torch.set_num_threads(1)
    use_fast_float32()
    keep_freed_memory()
    config, params = ranked.config, ranked.params
    families = Families(config, len(ranked.relations))
    numbering = Numbering(config, ranked.counts, families)
    sample_of_edges = Sample.of(held_out, evaluation.max_edges, relation_edges=relation_edges(gates) if gates else 0)
    asked = numbering.triples(sample_of_edges.edges.items())
    sides = {side: OneSide(side, asked, max(map(numbering.total, config.entities))) for side in SIDES}
    if evaluation.exclude_self:
        _exclude_known_ends(config, families, asked, ranked.loops, sides)
    _stream(known, numbering, [side.add_known for side in sides.values()])
    if train is not None:
        _stream(train, numbering, [add for side in sides.values() for add in (side.add_known, side.add_training)])

    sample = Candidates.draw(ranked.counts, evaluation.max_candidates, seed, kept=candidates)
    tables = _tables(ranked, numbering, sample)
    groups = list(by_types(config, families, asked))
    models = [config, *(rival.config for rival in (compared, best) if rival is not None)]
    dimension = max(each.entity_dimension(entity) for each in models for entity in each.entities)
    budget = Budget.of(memory_bytes, dimension, threads)
    names = relation_labels(config, ranked.relations)
    rounds = RankedRounds(tables, groups, sides, len(asked))
    paired, paired_best = (
        None if rival is None else PairedRanks(tables, rival, numbering, groups, sides, asked, seed)
        for rival in (compared, None if best is compared else best)
    )
    pairs = [
        PairedRounds(pair, ratios, gates, sample_of_edges.extra)
        for pair, ratios in ((paired, _ratios(gates, compared, best)), (paired_best, _ratios(gates, None, best)))
        if pair is not None
    ]
    continued = compared is not None and compared.continued
    complete = len(sample_of_edges.order) == sample_of_edges.total
    for rows in sample_of_edges.rounds() if gates else [np.arange(len(asked))]:
        with Progress("evaluate", total=rounds.scores(rows), unit="scores") as progress:
            model = Model(config, families, params, budget, progress, threads)
            rounds.rank(model, rows)
        for pair in pairs:
            with Progress("compare", unit="scores") as progress:
                pair.rank(replace(model, progress=progress), rows, rounds, whole=complete)
        beside_best = paired if best is compared else paired_best
        ranked_rows, _ = rounds.counted(sample_of_edges.extra)
        if gates is None or not floors_have_edges(gates, asked.rel, ranked_rows, names):
            continue
        reciprocals = rounds.reciprocals(sample_of_edges.extra, paired, beside_best)
        if reciprocals.decide(gates, continued=continued):
            break
    done, counted = rounds.counted(sample_of_edges.extra)
    whole = len(counted) == sample_of_edges.total
    reciprocal = mean_reciprocal([ranks.select(counted) for ranks in rounds.found.values()])
    if tell_each is not None:
        tell_each(reciprocal)
    report = EvaluationReport.of(
        {name: ranks.select(done) for name, ranks in rounds.found.items()},
        asked.rel[done],
        names,
        split=evaluation.split,
        candidates={entity: table.candidates for entity, table in tables.items()},
        sampled=sample is not None,
        popular=[ranks[done] for ranks in rounds.popular],
        against=None if paired is None else paired.comparison_(rounds.is_counted(sample_of_edges.extra), names),
        best=None if paired_best is None else paired_best.comparison_(rounds.is_counted(sample_of_edges.extra), names),
        counted=np.searchsorted(done, counted),
        held_out=None if whole else sample_of_edges.total,
        interval=None if whole and not interval else mean_interval(reciprocal, seed),
    )
    return report, sample


def _ratios(gates: Gates | None, compared: ComparedModel | None, best: ComparedModel | None) -> Ratios:
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


def _exclude_known_ends(
    config: ModelConfig, families: Families, asked: Triples, loops: np.ndarray | None, sides: Mapping[Side, OneSide]
) -> None:
    """Let the known end of each question count as right.

    It is then left out of the filtered ranks. It does not count as right for relations with loops, of which it is a
    possible answer.
    """
    if loops is None:
        raise ConfigError(
            "exclude_self: the model does not tell which relations had loops in training, because PBG or an earlier "
            "version wrote it; train it with this version, or leave exclude_self out"
        )
    same = np.array([relation.lhs == relation.rhs for relation in config.relations])[families.first]
    same[np.isin(np.arange(len(same)), loops)] = False
    chosen = asked.select(np.flatnonzero(same[asked.rel]))
    sides["rhs"].add_known(Triples(chosen.lhs, chosen.rel, chosen.lhs))
    sides["lhs"].add_known(Triples(chosen.rhs, chosen.rel, chosen.rhs))


def _stream(edges: EdgeStream, numbering: Numbering, consumers: list[Callable[[Triples], None]]) -> None:
    """Pass every piece of the edges to every consumer.

    The edges are read once.
    """
    for bucket, listed in edges():
        for start in range(0, max(len(listed), 1), PIECE_EDGES):
            triples = numbering.triples([(bucket, _part(listed, start, start + PIECE_EDGES))])
            for consume in consumers:
                consume(triples)


def _part(edges: EdgeList, start: int, stop: int) -> EdgeList:
    """Return the ids of some edges, sharing their memory."""
    return EdgeList(edges.lhs[start:stop], edges.rhs[start:stop], edges.rel[start:stop])


def _tables(ranked: LocalModel, numbering: Numbering, sample: Candidates | None) -> dict[str, EntityTable]:
    """Return the table of every entity type."""
    return {
        entity: EntityTable(
            [ranked.paths[entity, partition] for partition in range(len(bases) - 1)],
            bases,
            ranked.config.entity_dimension(entity),
            eligible(
                int(bases[-1]),
                sample.numbers(entity, bases) if sample else None,
                ranked.hidden.numbers(entity, bases) if ranked.hidden else None,
            ),
        )
        for entity, bases in numbering.bases.items()
    }
