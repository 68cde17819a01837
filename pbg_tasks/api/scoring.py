"""Scores of edges, and best completions of them, by number.

Entities and relations are given by numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from pbg_tasks.api.search import best
from pbg_tasks.formats.edges import Features
from pbg_tasks.model.parameters import OTHER_SIDE
from pbg_tasks.model.scoring import RelationScorer
from pbg_tasks.model.similarity import Similarity

if TYPE_CHECKING:
    from torch import Tensor

    from pbg_tasks.api.loading import Contents
    from pbg_tasks.api.relations import RelationIndex
    from pbg_tasks.api.vectors import Vectors
    from pbg_tasks.evaluate.filters import Answers
    from pbg_tasks.model.parameters import Side

Ends = np.ndarray | Features
"""Entities by number, int64 (N,); or the features of each, whose mean it is."""

_BLOCK_NUMBERS = 1 << 22  # floats of one side's embeddings that are in memory at a time


def gather(vectors: Vectors, ends: Ends, max_norm: float | None = None) -> Tensor:
    """Return the raw embeddings of some entities, float32 (N, D).

    A bag without features is zero, as in PBG.

    Args:
        vectors: of the type.
        ends: the entities.
        max_norm: to which training shrinks features before their mean; None: they stay.
    """
    if isinstance(ends, Features):
        raw_MD, offsets = torch.from_numpy(vectors.rows(ends.data)), torch.from_numpy(ends.offsets)
        raw_MD = raw_MD if max_norm is None else torch.renorm(raw_MD, 2, 0, max_norm)
        return embedding_bag(torch.arange(len(raw_MD)), raw_MD, offsets, mode="mean", include_last_offset=True)
    return torch.from_numpy(vectors.rows(ends))


def _select(ends: Ends, rows: np.ndarray) -> Ends:
    return ends.select(rows) if isinstance(ends, Features) else ends[rows]


class EdgeScorer:
    """Scorer of edges and entities, exactly as in training and evaluation."""

    def __init__(self, contents: Contents, relations: RelationIndex) -> None:
        self._contents, self._relations = contents, relations
        self._scorers: dict[int, RelationScorer] = {}

    def pairs(self, family: int, lhs: Ends, rel: np.ndarray, rhs: Ends, predict: Side) -> np.ndarray:
        """Score edges of one family of relations, float32 (N,).

        They are scored a block at a time.
        """
        config = self._contents.config
        size = max(1, _BLOCK_NUMBERS // config.entity_dimension(config.relations[family].lhs))
        scores = np.empty(len(rel), np.float32)
        known, asked = (rhs, lhs) if predict == "lhs" else (lhs, rhs)
        for start in range(0, len(rel), size):
            rows = np.arange(start, min(start + size, len(rel)))
            scorer = self._scorer(family)
            query_ND = self._queries(family, _select(known, rows), rel[rows], predict)
            candidate_ND = scorer.candidates(self._raw(family, predict, _select(asked, rows)), predict=predict)
            scores[rows] = scorer.score_pairs(query_ND, candidate_ND).numpy()
        return scores

    def complete(
        self, family: int, known: Ends, rel: np.ndarray, predict: Side, count: int, excluded: Answers | None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the best entities on side ``predict`` for each query.

        The queries are of one family; the result has numbers and scores.
        """
        query_QD = self._queries(family, known, rel, predict)
        metric = _Completion(self._scorer(family), predict)
        return best(metric, query_QD, self._vectors(family, predict), count, excluded)

    def similar(self, entity: str, numbers: np.ndarray, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the entities most similar to each of some of a type.

        The result has numbers and scores; the entity itself is among them.
        """
        vectors = self._contents.entities[entity].vectors
        metric = Similarity(self._contents.config, self._contents.params, entity)
        return best(metric, metric.candidates(gather(vectors, numbers)), vectors, count)

    def means(self, entity: str, bags: Features) -> np.ndarray:
        """Return the means of some bags of features, float32 (N, D)."""
        found: np.ndarray = gather(self._contents.entities[entity].vectors, bags).numpy()
        return found

    def _queries(self, family: int, known: Ends, rel: np.ndarray, predict: Side) -> Tensor:
        raw_QD = self._raw(family, OTHER_SIDE[predict], known)
        row_Q = torch.from_numpy(self._relations.families.row[rel])
        return self._scorer(family).queries(raw_QD, row_Q, predict=predict)

    def _scorer(self, family: int) -> RelationScorer:
        if family not in self._scorers:
            self._scorers[family] = RelationScorer(self._contents.config, family, self._contents.params)
        return self._scorers[family]

    def _raw(self, family: int, side: Side, ends: Ends) -> Tensor:
        """Return the embeddings of one side, of shrunk features."""
        config = self._contents.config
        trains = config.entities[getattr(config.relations[family], side)].trainable
        return gather(self._vectors(family, side), ends, config.max_norm if trains else None)

    def _vectors(self, family: int, side: Side) -> Vectors:
        return self._contents.entities[getattr(self._contents.config.relations[family], side)].vectors


class _Completion:
    """Comparison of a relation's queries with candidates on one side."""

    def __init__(self, scorer: RelationScorer, predict: Side) -> None:
        self._scorer, self._predict = scorer, predict
        self.score, self.score_pairs = scorer.score, scorer.score_pairs

    def candidates(self, raw_KD: Tensor) -> Tensor:
        return self._scorer.candidates(raw_KD, predict=self._predict)
