"""Evaluation of a checkpoint on held-out edges."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.config.comparators import is_product
from pbg_tasks.config.relations import relation_labels
from pbg_tasks.evaluate.candidates import Candidates, eligible
from pbg_tasks.evaluate.comparison import GPU_BLOCK_ROWS, GPU_THREADS, compare_products, products_on
from pbg_tasks.evaluate.counts import Counting
from pbg_tasks.evaluate.ids import Bucket, Numbering, Triples, by_types
from pbg_tasks.evaluate.one_side import OneSide, exclude_known_ends
from pbg_tasks.evaluate.paired_comparison import PairedRanks, mean_interval, mean_reciprocal
from pbg_tasks.evaluate.ranking import Model
from pbg_tasks.evaluate.report import EvaluationReport
from pbg_tasks.evaluate.rounds import PairedRounds, RankedRounds
from pbg_tasks.evaluate.sampling import Sample, floors_decide, ratios_beside, relation_edges, replaced_ratios
from pbg_tasks.evaluate.tables import MAX_BLOCK_ROWS, Budget, EntityTable
from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.formats.memory import keep_freed_memory
from pbg_tasks.model.families import Families
from pbg_tasks.model.parameters import SIDES
from pbg_tasks.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from pbg_tasks.config import Evaluation, Gates
    from pbg_tasks.evaluate.compared_model import ComparedModel
    from pbg_tasks.evaluate.kept_counts import KeptCounts
    from pbg_tasks.evaluate.local_model import LocalModel

    EdgeStream = Callable[[], Iterator[tuple[Bucket, EdgeList]]]

BLOCK_EDGES = 1 << 20
"""Number of edges that are processed together, of a bucket that may hold all edges."""


class EdgeRanking:
    """Held-out edges, their candidates, and the models that rank them.

    Args:
        ranked: the model; ``evaluation.exclude_self`` needs its loops.
        held_out: edges by bucket.
        known: every edge known to be true, by bucket; called once. A bucket may come in several pieces.
        train: training edges, in the same way. They count as known, so ``known`` need not repeat them, and the
            popularity baseline is made of them.
        evaluation: numbers of edges and candidates.
        candidates: a sample to use again, for the types that it has.
        compared: another model that ranks the same edges, as far as it knows their ends and relations.
        best: a third one; where it is ``compared``, that ranks the edges once.
        replaced: another one, whose place tonight's model would take.
        gates: limits about which the figures have to decide: a sample of the edges is ranked in rounds, until they do;
            None: all of them are ranked.
        seed: of what is newly sampled.
        counting: ``MergedCounting`` of parts, instead of reading candidates; ``PartCounting`` to count those of a
            share for every possible question, because only the merge knows the ranks that end the rounds; None: all
            candidates are read.

    Attributes:
        candidates: the sample of candidates when one was needed.

    Raises:
        ConfigError: ``evaluation.exclude_self``, and it is unknown which relations had loops.
        ResourceError: ``evaluation.device`` is a GPU, and there is none.
    """

    def __init__(
        self,
        ranked: LocalModel,
        held_out: Mapping[Bucket, EdgeList],
        known: EdgeStream,
        train: EdgeStream | None = None,
        *,
        evaluation: Evaluation,
        candidates: Candidates | None = None,
        compared: ComparedModel | None = None,
        best: ComparedModel | None = None,
        replaced: ComparedModel | None = None,
        gates: Gates | None = None,
        seed: int = 0,
        counting: Counting | None = None,
    ) -> None:
        keep_freed_memory()
        self.products = products_on(evaluation.device)
        self.ranked, self.compared = ranked, compared
        self.best, self.replaced = best, replaced
        self.seed, self.gates = seed, gates
        self.counting = counting = counting or Counting()
        self.split, config = evaluation.split, ranked.config
        self.families = Families(config, len(ranked.relations))
        numbering = Numbering(config, ranked.counts, self.families)
        self.chosen = Sample.of(held_out, evaluation.max_edges, relation_edges=relation_edges(gates) if gates else 0)
        asked = self.asked = numbering.triples(self.chosen.edges.items())
        sides = {side: OneSide(side, asked, max(map(numbering.total, config.entities))) for side in SIDES}
        if evaluation.exclude_self:
            exclude_known_ends(config, self.families, asked, ranked.loops, sides)
        _stream(known, numbering, [side.add_known for side in sides.values()])
        if train is not None:
            _stream(train, numbering, [add for side in sides.values() for add in (side.add_known, side.add_training)])

        limit = evaluation.max_candidates
        self.candidates = Candidates.draw(ranked.counts, limit, seed, kept=candidates, hidden=ranked.hidden)
        self.tables = _tables(ranked, numbering, self.candidates, counting.share)
        groups = list(by_types(config, self.families, asked))
        models = [config, *(model.config for model in (compared, best, replaced) if model is not None)]
        self.dimension = max(each.entity_dimension(entity) for each in models for entity in each.entities)
        self.rounds = RankedRounds(self.tables, groups, sides, len(asked), counting)
        self.paired, self.paired_best, self.paired_replaced = (
            None
            if model is None
            else PairedRanks(self.tables, model, numbering, groups, sides, asked, seed, counting=counting, name=name)
            for name, model in (
                ("against", compared),
                ("best", None if best is compared else best),
                ("replaced", replaced),
            )
        )
        self.pairs = [
            PairedRounds(pair, ratios, gates, self.chosen.extra, decides=counting.decides)
            for pair, ratios in (
                (self.paired, ratios_beside(gates, compared, best)),
                (self.paired_best, ratios_beside(gates, None, best)),
                (self.paired_replaced, replaced_ratios(gates, replaced)),
            )
            if pair is not None
        ]

    def rank(self, threads: int = 1, memory_bytes: int = 1 << 30) -> None:
        """Rank the edges in rounds, until the gates can decide.

        Args:
            threads: CPU threads.
            memory_bytes: budget for queries, candidates and scores; held-out edges and known answers come on top.

        Raises:
            FormatError: an embeddings file is damaged, of another shape, or not finite, or the counts of parts are of
                other questions.
        """
        self.counting.begin(self._digest())
        most_rows = MAX_BLOCK_ROWS
        if self.products is not compare_products and is_product(self.ranked.config):
            threads, most_rows = min(threads, GPU_THREADS), GPU_BLOCK_ROWS
        budget = Budget.of(memory_bytes, self.dimension, threads, most_rows)
        complete = len(self.chosen.order) == self.chosen.total
        for rows in self.chosen.rounds() if self.gates else [np.arange(len(self.asked))]:
            with Progress("evaluate", total=self.rounds.scores(rows), unit="scores") as progress:
                model = Model(
                    self.ranked.config,
                    self.families,
                    self.ranked.params,
                    budget,
                    progress,
                    threads,
                    products=self.products,
                )
                self.rounds.rank(model, rows)
            for pair in self.pairs:
                with Progress("compare", unit="scores") as progress:
                    pair.rank(replace(model, progress=progress), rows, self.rounds, whole=complete)
            if self.counting.decides and self._is_decided():
                break

    def _is_decided(self) -> bool:
        done, _ = self.rounds.counted(self.chosen.extra)
        ranked = mean_reciprocal([ranks.select(done) for ranks in self.rounds.found.values()])
        if self.gates is None or not floors_decide(self.gates, self.asked.rel, done, ranked, self._names):
            return False
        beside_best = self.paired if self.best is self.compared else self.paired_best
        # A trial is hardly ever clearly no worse, so its limit alone would rank all edges.
        replaced = None if self.replaced is None or self.replaced.repeats else self.paired_replaced
        reciprocals = self.rounds.reciprocals(self.chosen.extra, self.paired, beside_best, replaced)
        return reciprocals.decide(self.gates, continued=self.compared is not None and self.compared.continued)

    @property
    def _names(self) -> list[str]:
        return relation_labels(self.ranked.config, self.ranked.relations)

    def _digest(self) -> str:
        """Return the hash of the questions and of each model's candidates."""
        arrays = [self.asked.lhs, self.asked.rel, self.asked.rhs, self.chosen.order, self.chosen.extra]
        for entity, table in self.tables.items():
            arrays.append(np.frombuffer(entity.encode(), np.uint8))
            arrays.append(np.array([table.candidates]) if self.candidates is None else table.candidate_numbers())
        for model in (self.compared, self.best):
            arrays.append(np.array([model is not None, model is not None and model is self.compared]))
            arrays += [] if model is None else [np.packbits(known) for known in model.known.values()]
        found = hashlib.sha256()
        for array in arrays:
            found.update(len(array).to_bytes(8, "little"))
            found.update(array.tobytes())
        if self.replaced is not None:  # a night without one has the hash of earlier versions
            for known in self.replaced.known.values():
                found.update(np.packbits(known).tobytes())
        return found.hexdigest()

    def kept(self) -> KeptCounts:
        """Return the counts of the model, for later nights."""
        return self.rounds.kept(self.asked)

    def report(
        self, *, interval: bool = False, report_each: Callable[[np.ndarray], object] | None = None
    ) -> EvaluationReport:
        """Summarise the ranks.

        Args:
            interval: give the interval of the MRR also where no edge is left out.
            report_each: is given the mean filtered reciprocal rank of both sides of each counted edge, float64 (N,); in
                the order of ``held_out`` where no edge is left out.
        """
        rounds, extra = self.rounds, self.chosen.extra
        names = self._names
        done, counted = rounds.counted(extra)
        whole = len(counted) == self.chosen.total
        reciprocal = mean_reciprocal([ranks.select(counted) for ranks in rounds.found.values()])
        if report_each is not None:
            report_each(reciprocal)
        against, best, replaced = (
            None if pair is None else pair.comparison_(rounds.is_counted(extra), names)
            for pair in (self.paired, self.paired_best, self.paired_replaced)
        )
        return EvaluationReport.of(
            {name: ranks.select(done) for name, ranks in rounds.found.items()},
            self.asked.rel[done],
            names,
            split=self.split,
            candidates={entity: table.candidates for entity, table in self.tables.items()},
            sampled=self.candidates is not None,
            popular=[ranks[done] for ranks in rounds.popular],
            against=against,
            best=best,
            replaced=replaced,
            counted=np.searchsorted(done, counted),
            held_out=None if whole else self.chosen.total,
            interval=None if whole and not interval else mean_interval(reciprocal, self.seed),
        )


def _stream(edges: EdgeStream, numbering: Numbering, consumers: list[Callable[[Triples], None]]) -> None:
    """Pass every piece of the edges to every consumer.

    The edges are read once.
    """
    for bucket, listed in edges():
        for start in range(0, max(len(listed), 1), BLOCK_EDGES):
            part = slice(start, start + BLOCK_EDGES)
            triples = numbering.triples([(bucket, EdgeList(listed.lhs[part], listed.rhs[part], listed.rel[part]))])
            for consume in consumers:
                consume(triples)


def _tables(
    ranked: LocalModel, numbering: Numbering, sample: Candidates | None, share: Mapping[str, Collection[int]]
) -> dict[str, EntityTable]:
    """Return the table of every entity type."""
    tables = {}
    for entity, bases in numbering.bases.items():
        paths = [ranked.paths[entity, partition] for partition in range(len(bases) - 1)]
        candidates = eligible(
            int(bases[-1]),
            sample.numbers(entity, bases) if sample else None,
            ranked.hidden.numbers(entity, bases) if ranked.hidden else None,
        )
        dimension = ranked.config.entity_dimension(entity)
        tables[entity] = EntityTable(paths, bases, dimension, candidates, share=share.get(entity))
    return tables
