"""Similarity of two entities of a type, for neighbours and drift."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pbg_tasks.model.parameters import global_path
from pbg_tasks.model.registry import comparator

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from torch import Tensor

    from pbg_tasks.config import ModelConfig


class Similarity:
    """Similarity of entities of one type, by the model's comparator.

    The global embedding is added, as everywhere. With ``bias`` the first dimension is left out: it shows how often an
    entity is an end of edges, and not its similarity to others.

    Args:
        config: of the model.
        params: shared parameters.
        entity: the type.
    """

    def __init__(self, config: ModelConfig, params: Mapping[str, np.ndarray], entity: str) -> None:
        self._comparator = comparator(config.comparator, bias=False)
        self._first = 1 if config.bias else 0
        self._global = torch.from_numpy(params[global_path(entity)]) if config.global_emb else None

    def vectors(self, raw_KD: Tensor) -> Tensor:
        """Return vectors from raw embeddings, before the comparator prepares them."""
        x_KD = raw_KD if self._global is None else raw_KD + self._global
        return x_KD[:, self._first :].contiguous()

    def candidates(self, raw_KD: Tensor) -> Tensor:
        """Return candidates from raw embeddings."""
        return self._comparator.prepare(self.vectors(raw_KD))

    def score(self, query_QD: Tensor, candidate_KD: Tensor) -> Tensor:
        """Compare all queries with all candidates: (Q, K)."""
        return self._comparator.all_pairs(query_QD.unsqueeze(0), candidate_KD.unsqueeze(0)).squeeze(0)

    def score_pairs(self, query_ND: Tensor, candidate_ND: Tensor) -> Tensor:
        """Compare row by row: (N,)."""
        return self._comparator.pairs(query_ND, candidate_ND)
