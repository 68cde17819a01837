"""Ranks of held-out edges against all entities of a type, over all partitions, raw and filtered.

Candidates stream by in blocks, each compared with every question while it is in memory. A candidate that ties with the
true entity counts as better (as in PBG), and so does one whose score is not a number.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Self

import numpy as np
import torch

from pbg_tasks.evaluate.tables import TILE_EDGES
from pbg_tasks.evaluate.ties import tie_from
from pbg_tasks.model.scoring import RelationScorer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.evaluate.filters import Answers
    from pbg_tasks.evaluate.questions import Questions
    from pbg_tasks.evaluate.tables import Block, Budget, EntityTable
    from pbg_tasks.model.families import Families
    from pbg_tasks.progress import Progress

MAX_SETTLED = 1 / 1024
"""Share of a tile's scores that may be computed again in float64; where more are that close, a model has collapsed."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Ranks of N edges on one side, from 1, and the number of candidates each was ranked among.

    Attributes:
        raw: int64 (N,).
        filtered: int64 (N,).
        raw_candidates: int64 (N,).
        filtered_candidates: int64 (N,).
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
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def select(self, rows: np.ndarray) -> Ranks:
        """Return those of some edges."""
        return Ranks(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Model:
    """What scores, how much memory it may use, and who is told how far it is.

    Attributes:
        config: of the model.
        families: of its relations.
        params: shared parameters by PBG's path.
        budget: sizes.
        progress: counts scores.
    """

    config: ModelConfig
    families: Families
    params: Mapping[str, np.ndarray]
    budget: Budget
    progress: Progress


@dataclass(frozen=True, slots=True)
class Ranker:
    """Ranks edges whose relations have the same two entity types.

    Attributes:
        model: what scores.
        questions: what all held-out edges ask on this side.
        answers: known answers, of these edges only candidates.
        known: table of the known ends.
        asked: table of the candidates.
    """

    model: Model
    questions: Questions
    answers: Answers
    known: EntityTable
    asked: EntityTable

    def rank(self, edges: np.ndarray, ranks: Ranks) -> None:
        """Rank some held-out edges.

        Args:
            edges: int64, rows of the held-out edges.
            ranks: of all held-out edges, where those of ``edges`` are filled in.
        """
        question, true = self.questions.of_edge[edges], self.questions.true[edges]
        ranks.raw[edges] = ranks.filtered[edges] = 1
        ranks.raw_candidates[edges] = among = self.asked.candidates + ~self.asked.eligible(true)
        ranks.filtered_candidates[edges] = among - self.answers.others(question, true)
        ordered = edges[np.argsort(question, kind="stable")]
        for start in range(0, len(ordered), self.model.budget.edges):
            self._rank_batch(ordered[start : start + self.model.budget.edges], ranks)

    def _rank_batch(self, edges: np.ndarray, ranks: Ranks) -> None:
        groups = self._groups(edges)
        for block in self.asked.blocks(self.model.budget.rows):
            for group in groups:
                candidates = group.scorer.candidates(torch.from_numpy(block.rows), predict=self.questions.predict)
                for start in range(0, len(group.edges), TILE_EDGES):
                    self._compare(group.tile(start, start + TILE_EDGES), block, candidates, ranks)

    def _groups(self, edges: np.ndarray) -> list[_Group]:
        """Prepare the questions of a batch, those of one scorer together."""
        families = self.model.families
        asked, of_batch = np.unique(self.questions.of_edge[edges], return_inverse=True)
        order = np.argsort(families.first[self.questions.rel[asked]], kind="stable")
        asked, of_batch = asked[order], np.argsort(order)[of_batch]
        by_question = np.argsort(of_batch, kind="stable")
        edges, of_batch = edges[by_question], of_batch[by_question]
        rel = self.questions.rel[asked]
        index = families.first[rel]
        known_rows = self.known.gather(self.questions.known[asked], self.model.budget.rows)
        true_rows = self.asked.gather(self.questions.true[edges], self.model.budget.rows)
        groups = []
        for number in np.unique(index):
            first, stop = np.searchsorted(index, (number, number + 1))
            begin, end = np.searchsorted(of_batch, (first, stop))
            scorer = RelationScorer(self.model.config, int(number), self.model.params)
            predict = self.questions.predict
            place = torch.from_numpy(families.row[rel[first:stop]])
            queries = scorer.queries(known_rows[first:stop], place, predict=predict)
            row = of_batch[begin:end] - first
            true = scorer.candidates(true_rows[begin:end], predict=predict)
            asking = queries[torch.from_numpy(row)]
            groups.append(_Group(scorer, queries, edges[begin:end], row, *self._ties(scorer, asking, true)))
        return groups

    def _ties(self, scorer: RelationScorer, asking: torch.Tensor, true: torch.Tensor) -> tuple[np.ndarray, ...]:
        """Return from which score on a candidate may tie, surely wins, and ties in float64."""
        score = scorer.score_pairs(asking, true)
        lowest = tie_from(self.model.config, asking, true, score)
        asking, true = asking.double(), true.double()
        exact = tie_from(self.model.config, asking, true, scorer.score_pairs(asking, true), exact=True)
        return lowest.numpy(), (2 * score - lowest).numpy(), exact.numpy()

    def _compare(self, tile: _Group, block: Block, candidates: torch.Tensor, ranks: Ranks) -> None:
        """Count which candidates of a block are no worse than the true entities of a tile."""
        scores = tile.scorer.score(tile.queries, candidates).numpy()
        if len(scores) < len(tile.edges):
            scores = scores[tile.row]
        worse = scores < tile.ties[:, np.newaxis]  # False for a score that is not a number
        tile.settle(scores, candidates, worse)
        worse[block.places(self.questions.true[tile.edges])] = True
        better = worse.shape[1] - _count_rows(worse)
        row, answer = self.answers.between(
            self.questions.of_edge[tile.edges], int(block.numbers[0]), int(block.numbers[-1]) + 1
        )
        not_worse = ~worse[row, np.searchsorted(block.numbers, answer)]
        ranks.raw[tile.edges] += better
        ranks.filtered[tile.edges] += better - np.bincount(row[not_worse], minlength=len(better))
        self.model.progress.advance(worse.size)


@dataclass(frozen=True, slots=True)
class _Group:
    """Edges with one scorer, ordered by question.

    Attributes:
        scorer: of their relation.
        queries: (G, D), prepared, one a question.
        edges: int64 (N,), rows of the held-out edges.
        row: int64 (N,), ascending, which query each asks.
        ties: (N,), from which score on a candidate may be no worse than the true entity.
        wins: (N,), up to which score that is a matter of rounding.
        exact: float64 (N,), from which exact score on it is no worse.
    """

    scorer: RelationScorer
    queries: torch.Tensor
    edges: np.ndarray
    row: np.ndarray
    ties: np.ndarray
    wins: np.ndarray
    exact: np.ndarray

    def tile(self, start: int, stop: int) -> _Group:
        """Return some of the edges, with the queries they need."""
        row = self.row[start:stop]
        queries = self.queries[row[0] : row[-1] + 1]
        ties, wins, exact = (bounds[start:stop] for bounds in (self.ties, self.wins, self.exact))
        return _Group(self.scorer, queries, self.edges[start:stop], row - row[0], ties, wins, exact)

    def settle(self, scores: np.ndarray, candidates: torch.Tensor, worse: np.ndarray) -> None:
        """Decide by exact scores which of the candidates within rounding of the true entity are worse after all.

        Args:
            scores: float32 (N, K), of the edges' queries.
            candidates: (K, D), prepared.
            worse: (N, K), where they are marked.
        """
        close = scores <= self.wins[:, np.newaxis]
        close ^= worse  # whatever is worse lies below ``wins`` as well
        count = np.count_nonzero(close)
        if not count or count > 2 * len(self.edges) + MAX_SETTLED * close.size:  # every true entity is close to itself
            return
        row, column = np.divmod(np.flatnonzero(close), close.shape[1])  # ten times as fast as nonzero of a matrix
        queries = self.queries[torch.from_numpy(self.row[row])].double()
        found = self.scorer.score_pairs(queries, candidates[torch.from_numpy(column)].double()).numpy()
        worse[row, column] = found < self.exact[row]


def _count_rows(flags: np.ndarray) -> np.ndarray:
    """Count the set flags of each row: numpy counts a flat row several times as fast as along an axis."""
    return np.fromiter((np.count_nonzero(row) for row in flags), np.int64, len(flags))
