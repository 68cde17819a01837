"""Scores as training gives them, for whoever ranks: queries on one side, every entity of a type on the other.

A matrix product may round a score differently in a block of another shape. Who compares scores takes them from products
of the same kind; ``score_pairs`` agrees with ``score`` to rounding only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pbg_tasks.model.comparators import comparator
from pbg_tasks.model.parameters import OTHER_SIDE, global_path
from pbg_tasks.model.relations import bind

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from torch import Tensor

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.model.parameters import Side


class RelationScorer:
    """Scores of one relation of the config (with dynamic relations, of all its relations).

    Which end the operator works on is PBG's: with dynamic relations on the known end, by the operators of that side; in
    standard mode on the right-hand end, known or not.

    Args:
        config: the model.
        index: of the relation in ``config.relations``.
        params: shared parameters by PBG's path below ``model/``.
    """

    def __init__(self, config: ModelConfig, index: int, params: Mapping[str, np.ndarray]) -> None:
        self._config, self._index, self._relation = config, index, config.relations[index]
        self._comparator = comparator(config.comparator, bias=config.bias)
        self._params = {path: torch.from_numpy(value) for path, value in params.items()}

    def queries(self, known_QD: Tensor, rel_Q: Tensor, *, predict: Side) -> Tensor:
        """Prepare the known ends: raw embeddings (Q, D) and relation ids (Q) to what candidates are compared with."""
        side = OTHER_SIDE[predict]
        x_QD = self._with_global(known_QD, side)
        if self._config.dynamic_relations:
            x_QD = bind(self._config, self._params, side, rel_Q).forward(x_QD)
        elif side == "rhs":
            x_QD = bind(self._config, self._params, side, self._index).forward(x_QD)
        return self._comparator.prepare(x_QD)

    def candidates(self, raw_KD: Tensor, *, predict: Side) -> Tensor:
        """Prepare raw embeddings (K, D) of the predicted side."""
        x_KD = self._with_global(raw_KD, predict)
        if not self._config.dynamic_relations and predict == "rhs":
            x_KD = bind(self._config, self._params, predict, self._index).forward(x_KD)
        return self._comparator.prepare(x_KD)

    def score(self, query_QD: Tensor, candidate_KD: Tensor) -> Tensor:
        """Compare prepared queries with prepared candidates, all with all: (Q, K)."""
        return self._comparator.all_pairs(query_QD.unsqueeze(0), candidate_KD.unsqueeze(0)).squeeze(0)

    def score_pairs(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        """Compare prepared queries with prepared candidates row by row: (Q,)."""
        return self._comparator.pairs(query_QD, candidate_QD)

    def _with_global(self, x_ND: Tensor, side: Side) -> Tensor:
        if not self._config.global_emb:
            return x_ND
        return x_ND + self._params[global_path(getattr(self._relation, side))]
