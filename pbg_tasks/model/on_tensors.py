"""Scores by torch behind the methods of ``model.arrays``.

They are distances, scores with a bias, and those of other packages' operators and comparators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pbg_tasks.model.numerics import use_fast_float32
from pbg_tasks.model.scoring import RelationScorer
from pbg_tasks.model.similarity import Similarity

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from torch import Tensor

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.model.parameters import Side


class TensorScorer:
    """Scores of one family, where these are no inner products.

    ``ProductScorer`` explains the methods.
    """

    def __init__(self, config: ModelConfig, family: int, params: Mapping[str, np.ndarray]) -> None:
        use_fast_float32()
        self._scorer = RelationScorer(config, family, params)

    def queries(self, known_QD: np.ndarray, row_Q: np.ndarray, *, predict: Side) -> np.ndarray:
        """Return queries for comparison with candidates, from the known ends."""
        return _array(self._scorer.queries(_tensor(known_QD), _tensor(row_Q), predict=predict))

    def candidates(self, raw_KD: np.ndarray, *, predict: Side) -> np.ndarray:
        """Return candidates from raw embeddings (K, D) of the predicted side."""
        return _array(self._scorer.candidates(_tensor(raw_KD), predict=predict))

    def score(self, query_QD: np.ndarray, candidate_KD: np.ndarray) -> np.ndarray:
        """Compare all queries with all candidates: (Q, K)."""
        return _array(self._scorer.score(_tensor(query_QD), _tensor(candidate_KD)))

    def score_pairs(self, query_QD: np.ndarray, candidate_QD: np.ndarray) -> np.ndarray:
        """Compare queries with candidates row by row: (Q,)."""
        return _array(self._scorer.score_pairs(_tensor(query_QD), _tensor(candidate_QD)))


class TensorLikeness:
    """Similarity of a type's entities, where it is no inner product.

    ``ProductLikeness`` explains the methods.
    """

    is_product = False

    def __init__(self, config: ModelConfig, params: Mapping[str, np.ndarray], entity: str) -> None:
        use_fast_float32()
        self._similarity = Similarity(config, params, entity)

    def vectors(self, raw_KD: np.ndarray) -> np.ndarray:
        """Return vectors from raw embeddings, before the comparator prepares them."""
        return _array(self._similarity.vectors(_tensor(raw_KD)))

    def candidates(self, raw_KD: np.ndarray) -> np.ndarray:
        """Return candidates from raw embeddings."""
        return _array(self._similarity.candidates(_tensor(raw_KD)))

    def score(self, query_QD: np.ndarray, candidate_KD: np.ndarray) -> np.ndarray:
        """Compare all queries with all candidates: (Q, K)."""
        return _array(self._similarity.score(_tensor(query_QD), _tensor(candidate_KD)))

    def score_pairs(self, query_ND: np.ndarray, candidate_ND: np.ndarray) -> np.ndarray:
        """Compare row by row: (N,)."""
        return _array(self._similarity.score_pairs(_tensor(query_ND), _tensor(candidate_ND)))


def _tensor(array: np.ndarray) -> Tensor:
    torch.set_num_threads(1)  # the tasks that score have threads of their own, and each has this setting for itself
    return torch.from_numpy(array)


def _array(tensor: Tensor) -> np.ndarray:
    found: np.ndarray = tensor.numpy()
    return found
