"""Scores as training gives them, for whoever ranks: queries on one side, every entity of a type on the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from pbg_tasks.model.comparators import comparator
from pbg_tasks.model.operators import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from torch import Tensor

    from pbg_tasks.config import ModelConfig

    Sided = Literal["lhs", "rhs"]


class RelationScorer:
    """Scores of one relation of the config (with dynamic relations, of all its relations).

    Which end the operator works on is PBG's: with dynamic relations on the known end, by the operators of the other
    direction; in standard mode on the right-hand end, known or not.

    Args:
        config: the model.
        index: of the relation in ``config.relations``.
        params: shared parameters by PBG's path below ``model/``.
    """

    def __init__(self, config: ModelConfig, index: int, params: Mapping[str, np.ndarray]) -> None:
        self._config, self._index = config, index
        self._relation = config.relations[index]
        self._operator = OPERATORS[self._relation.operator]
        self._comparator = comparator(config.comparator, bias=config.bias)
        self._params = {path: torch.from_numpy(value) for path, value in params.items()}

    def queries(self, known_QD: Tensor, rel_Q: Tensor, *, predict: Sided) -> Tensor:
        """Prepare the known ends: raw embeddings (Q, D) and relation ids (Q) to what candidates are compared with."""
        side: Sided = "rhs" if predict == "lhs" else "lhs"
        x_QD = self._with_global(known_QD, side)
        if self._config.dynamic_relations:
            x_QD = self._operator.forward(x_QD, self._rows(side, rel_Q))
        elif side == "rhs":
            x_QD = self._operator.forward(x_QD, self._shared())
        return self._comparator.prepare(x_QD)

    def candidates(self, raw_KD: Tensor, *, predict: Sided) -> Tensor:
        """Prepare raw embeddings (K, D) of the predicted side."""
        x_KD = self._with_global(raw_KD, predict)
        if not self._config.dynamic_relations and predict == "rhs":
            x_KD = self._operator.forward(x_KD, self._shared())
        return self._comparator.prepare(x_KD)

    def score(self, query_QD: Tensor, candidate_KD: Tensor) -> Tensor:
        """Compare prepared queries with prepared candidates, all with all: (Q, K)."""
        return self._comparator.all_pairs(query_QD.unsqueeze(0), candidate_KD.unsqueeze(0)).squeeze(0)

    def _with_global(self, x_ND: Tensor, side: Sided) -> Tensor:
        if not self._config.global_emb:
            return x_ND
        return x_ND + self._params[f"entities/{getattr(self._relation, side)}/global_embedding"]

    def _shared(self) -> dict[str, Tensor]:
        prefix = f"relations/{self._index}/operator/rhs"
        return {name: self._params[f"{prefix}/{name}"] for name in self._operator.plural}

    def _rows(self, side: Sided, rel_Q: Tensor) -> dict[str, Tensor]:
        prefix = f"relations/0/operator/{side}"
        return {
            name: self._params[f"{prefix}/{plural}"].index_select(0, rel_Q)
            for name, plural in self._operator.plural.items()
        }
