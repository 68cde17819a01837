"""Ranks of held-out edges among all entities of a type.

The entities are those of all partitions, and the ranks raw and filtered. Candidates are read in blocks, each compared
with every question while it is in memory. A candidate that ties with the true entity counts as better (as in PBG), and
so does one whose score is not a number.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Self

import numpy as np

from pbg_tasks.evaluate.comparison import compare_products
from pbg_tasks.evaluate.parts import Part, takes_no_tiles
from pbg_tasks.evaluate.ties import tie_range
from pbg_tasks.formats.edges import joined_columns
from pbg_tasks.model.arrays import scorer
from pbg_tasks.storage.parallel import work_off

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.evaluate.comparison import Products
    from pbg_tasks.evaluate.filters import Answers
    from pbg_tasks.evaluate.questions import Questions
    from pbg_tasks.evaluate.tables import Block, Budget, EntityTable
    from pbg_tasks.model.arrays import Scorer
    from pbg_tasks.model.families import Families
    from pbg_tasks.progress import Progress

PART_QUESTIONS = 2048
"""Number of questions that one thread compares with one block; the candidates are prepared anew for each part."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Ranks of N edges on one side, from 1.

    Attributes:
        raw: int64 (N,).
        filtered: int64 (N,).
        raw_candidates: int64 (N,), number of candidates of each raw rank.
        filtered_candidates: int64 (N,), number of candidates of each filtered rank.
    """

    raw: np.ndarray
    filtered: np.ndarray
    raw_candidates: np.ndarray
    filtered_candidates: np.ndarray

    @classmethod
    def empty(cls, count: int) -> Self:
        """Return ranks of edges that were not ranked yet."""
        return cls(*(np.zeros(count, np.int64) for _ in fields(cls)))

    @classmethod
    def joined(cls, parts: Sequence[Ranks]) -> Self:
        """Return the ranks of several lists of edges as one."""
        return cls(*joined_columns(parts, (field.name for field in fields(cls))))

    def select(self, rows: np.ndarray) -> Ranks:
        """Return the ranks of some edges."""
        return Ranks(*(getattr(self, field.name)[rows] for field in fields(self)))

    def take(self, rows: np.ndarray, ranks: Ranks) -> None:
        """Set the ranks of some edges.

        Args:
            rows: int64 (M,), of the edges.
            ranks: of these M edges.
        """
        for each in fields(self):
            getattr(self, each.name)[rows] = getattr(ranks, each.name)

    def without(self, outside: Ranks) -> Ranks:
        """Return the ranks of the same edges among fewer candidates.

        Where rounding judged a candidate differently in the two counts, the result may not be a rank: see ``possible``.

        Args:
            outside: ranks among the candidates that are left out, none of which is the true entity of an edge.
        """
        own = 1  # the true entity, which is counted in both
        return Ranks(*(getattr(self, field.name) - getattr(outside, field.name) + own for field in fields(self)))

    def possible(self) -> np.ndarray:
        """Return which ranks are 1 or more: bool (N,)."""
        return (self.raw >= 1) & (self.filtered >= 1)


@dataclass(frozen=True, slots=True)
class Model:
    """Model that scores, with its memory budget and a progress counter.

    Attributes:
        config: of the model.
        families: of its relations.
        params: shared parameters by PBG's path.
        budget: sizes.
        progress: counts scores.
        threads: CPU threads.
        unsettled: int64 rows of held-out edges with so many close candidates in a tile that these were not settled;
            added to while edges are ranked.
        products: compares candidates whose scores are inner products.
    """

    config: ModelConfig
    families: Families
    params: Mapping[str, np.ndarray]
    budget: Budget
    progress: Progress
    threads: int
    unsettled: list[np.ndarray] = field(default_factory=list)
    products: Products = compare_products


@dataclass(frozen=True, slots=True)
class Ranker:
    """Ranker of edges whose relations have the same two entity types.

    Attributes:
        model: that scores.
        questions: of all held-out edges on this side.
        answers: known answers of these edges; only candidates.
        known: table of the known ends.
        asked: table of the candidates.
        counted: int64 (2, N), of all held-out edges: number of candidates that are no worse, and of those that are no
            known answers among them, as parts of the evaluation counted them; None: candidates are read and counted.
    """

    model: Model
    questions: Questions
    answers: Answers
    known: EntityTable
    asked: EntityTable
    counted: np.ndarray | None = None

    def begin(self, edges: np.ndarray, ranks: Ranks) -> np.ndarray:
        """Set what is known of the ranks before candidates are counted.

        Args:
            edges: int64, rows of the held-out edges.
            ranks: of all held-out edges; those of ``edges`` are set.

        Returns:
            The edges whose candidates are still to be counted, by question.
        """
        edges = edges[np.argsort(self.questions.of_edge[edges], kind="stable")]
        question, true = self.questions.of_edge[edges], self.questions.true[edges]
        ranks.raw[edges] = ranks.filtered[edges] = 1
        ranks.raw_candidates[edges] = among = self.asked.candidates + ~self.asked.eligible(true)
        ranks.filtered_candidates[edges] = among - self.answers.others(question, true)
        if self.counted is None:
            return edges
        ranks.raw[edges] += self.counted[0][edges]
        ranks.filtered[edges] += self.counted[1][edges]
        return edges[:0]

    def parts(self, edges: np.ndarray) -> list[Part]:
        """Prepare the questions of a batch, grouped by scorer."""
        asked, of_batch = np.unique(self.questions.of_edge[edges], return_inverse=True)
        order = np.argsort(self.model.families.first[self.questions.rel[asked]], kind="stable")
        asked, of_batch = asked[order], np.argsort(order)[of_batch]
        by_question = np.argsort(of_batch, kind="stable")
        edges, of_batch = edges[by_question], of_batch[by_question]
        rel = self.questions.rel[asked]
        family, row = self.model.families.first[rel], self.model.families.row[rel]
        known_rows = self.known.gather(self.questions.known[asked], self.model.budget.rows)
        true_rows = self.asked.gather(self.questions.true[edges], self.model.budget.rows)
        parts: dict[int, Part] = {}

        def prepare(_: int, cut: tuple[int, int]) -> None:
            questions, own = slice(*cut), slice(*np.searchsorted(of_batch, cut))
            own_scorer = scorer(self.model.config, int(family[cut[0]]), self.model.params)
            query_QD = own_scorer.queries(known_rows[questions], row[questions], predict=self.questions.predict)
            parts[cut[0]] = self._part(
                own_scorer, asked[questions], query_QD, edges[own], of_batch[own] - cut[0], true_rows[own]
            )

        work_off(_cuts(family), self.model.threads, prepare)
        return list(parts.values())

    def _part(
        self,
        own_scorer: Scorer,
        asked: np.ndarray,
        query_QD: np.ndarray,
        edges: np.ndarray,
        question: np.ndarray,
        true_ND: np.ndarray,
    ) -> Part:
        """Prepare the edges of a part.

        The arguments are the part's attributes, except that the true entities are raw.
        """
        config, predict = self.model.config, self.questions.predict
        true_ND = own_scorer.candidates(true_ND, predict=predict)
        query_ND = query_QD[question]
        ties_N, wins_N = tie_range(config, query_ND, true_ND, own_scorer.score_pairs(query_ND, true_ND))
        true, bounds = self.questions.true[edges], (ties_N, wins_N)
        shared = self.model.unsettled, self.model.products
        return Part(config, own_scorer, predict, asked, query_QD, edges, question, true, true_ND, *bounds, *shared)


def rank_together(asking: Iterable[tuple[Ranker, np.ndarray, Ranks]]) -> None:
    """Rank held-out edges by several rankers of one model.

    Where scores are products, rankers with the same table of candidates go through it together: to read and round a
    candidate takes as long as to compare it with some hundred questions.

    Args:
        asking: each ranker with rows of held-out edges, and the ranks of all held-out edges; those of the rows are set.
    """
    groups: dict[int, list[tuple[Ranker, np.ndarray, Ranks]]] = {}
    for number, (ranker, rows, ranks) in enumerate(asking):
        # Otherwise the number of questions decides how many candidates a tile has.
        shared = id(ranker.asked) if takes_no_tiles(ranker.model.config, ranker.model.products) else -number
        groups.setdefault(shared, []).append((ranker, ranker.begin(rows, ranks), ranks))
    for group in groups.values():
        model, table = group[0][0].model, group[0][0].asked
        for batch in _batches(group, model.budget.edges):
            _count(
                model, table, [(ranker, part, ranks) for ranker, rows, ranks in batch for part in ranker.parts(rows)]
            )


def _batches(
    group: Iterable[tuple[Ranker, np.ndarray, Ranks]], limit: int
) -> Iterator[list[tuple[Ranker, np.ndarray, Ranks]]]:
    """Cut the edges of rankers into batches of at most ``limit`` edges."""
    batch: list[tuple[Ranker, np.ndarray, Ranks]] = []
    left = limit
    for ranker, rows, ranks in group:
        while len(rows):
            some, rows = rows[:left], rows[left:]  # noqa: PLW2901 - what is left of them
            batch.append((ranker, some, ranks))
            left -= len(some)
            if not left:
                yield batch
                batch, left = [], limit
    if batch:
        yield batch


def _count(model: Model, table: EntityTable, parts: list[tuple[Ranker, Part, Ranks]]) -> None:
    """Compare all candidates of a table with parts of rankers."""
    counting = threading.Lock()  # two threads may have the same edges and different blocks

    def compare(_: int, item: tuple[tuple[Ranker, Part, Ranks], Block]) -> None:
        (ranker, part, ranks), block = item
        no_worse, known = part.compare(block, ranker.answers, model.budget.scores)
        with counting:
            ranks.raw[part.edges] += no_worse
            ranks.filtered[part.edges] += no_worse - known
            model.progress.advance(len(part.edges) * len(block.numbers))

    rows = _block_rows(model, [part for _, part, _ in parts])
    work_off(((each, block) for block in table.blocks(rows) for each in parts), model.threads, compare)


def _block_rows(model: Model, parts: list[Part]) -> int:
    """Return the number of candidates to compare at a time."""
    if takes_no_tiles(model.config, model.products):
        return model.budget.product_rows(parts[0].query_QD.shape[1])
    return model.budget.block_rows(sum(len(part.asked) for part in parts) // len(parts))


def _cuts(family: np.ndarray) -> Iterator[tuple[int, int]]:
    """Cut questions at changes of their scorer, into limited parts.

    A part has at most ``PART_QUESTIONS``.
    """
    ends = [*(np.flatnonzero(np.diff(family)) + 1).tolist(), len(family)]
    for first, stop in pairwise([0, *ends]):
        for start in range(first, stop, PART_QUESTIONS):
            yield start, min(start + PART_QUESTIONS, stop)
