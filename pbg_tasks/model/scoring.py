"""Scores for rankings, equal to those of training.

Queries are on one side, every entity of a type on the other. A matrix product may round a score differently in a block
of another shape. So scores that are compared must come from products of the same kind; ``score_pairs`` agrees with
``score`` to rounding only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from pbg_tasks.model.parameters import OTHER_SIDE, global_path
from pbg_tasks.model.registry import comparator
from pbg_tasks.model.relations import bind

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.model.parameters import Side


class RelationScorer:
    """Scores of one family of relations.

    As in PBG, the operator works on the known end with dynamic relations, by the operators of that side; in standard
    mode it works on the right-hand end, known or not. Reciprocal relations work as dynamic ones do.

    Args:
        config: the model.
        family: index of its first relation in ``config.relations``.
        params: shared parameters by PBG's path below ``model/``.
    """

    def __init__(self, config: ModelConfig, family: int, params: Mapping[str, np.ndarray]) -> None:
        self._config, self._family = config, family
        self._relation = config.relations[family]
        self._two_operators = config.has_two_operators(self._relation)
        self._comparator = comparator(config.comparator, bias=config.bias)
        self._params = _Tensors(params)

    def queries(self, known_QD: Tensor, row_Q: Tensor, *, predict: Side) -> Tensor:
        """Return queries for comparison with candidates, from the known ends.

        Args:
            known_QD: raw embeddings.
            row_Q: int64, relations by their row in the family (``Families.row``); used with two operators.
            predict: side of the candidates.
        """
        side = OTHER_SIDE[predict]
        x_QD = self._looked_up(known_QD, side)
        if self._two_operators:
            x_QD = bind(self._config, self._params, side, self._family, row_Q).forward(x_QD)
        elif side == "rhs":
            x_QD = bind(self._config, self._params, side, self._family, None).forward(x_QD)
        return self._comparator.prepare(x_QD)

    def wanted(self, known_QD: Tensor, row_Q: Tensor, *, predict: Side) -> Tensor:
        """Return the ideal candidates for the known ends.

        They are what candidates should be before they are looked up, to be compared best. That is ``queries``; where
        the operator works on the candidates, it is the operator's inverse of the known ends.

        Args:
            known_QD: raw embeddings.
            row_Q: as in ``queries``.
            predict: side of the candidates.

        Returns:
            (Q, D), with the global embedding of the predicted side still in it.
        """
        if self._two_operators or predict == "lhs":
            return self.queries(known_QD, row_Q, predict=predict)
        bound = bind(self._config, self._params, predict, self._family, None)
        return self._comparator.prepare(bound.operator.inverse(self._looked_up(known_QD, "lhs"), bound.params))

    def candidates(self, raw_KD: Tensor, *, predict: Side) -> Tensor:
        """Return candidates from raw embeddings (K, D) of the predicted side."""
        x_KD = self._looked_up(raw_KD, predict)
        if not self._two_operators and predict == "rhs":
            x_KD = bind(self._config, self._params, predict, self._family, None).forward(x_KD)
        return self._comparator.prepare(x_KD)

    def score(self, query_QD: Tensor, candidate_KD: Tensor) -> Tensor:
        """Compare all queries with all candidates: (Q, K)."""
        return self._comparator.all_pairs(query_QD.unsqueeze(0), candidate_KD.unsqueeze(0)).squeeze(0)

    def score_pairs(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        """Compare queries with candidates row by row: (Q,)."""
        return self._comparator.pairs(query_QD, candidate_QD)

    def _looked_up(self, x_ND: Tensor, side: Side) -> Tensor:
        """Return embeddings as training looks them up.

        They are not longer than ``max_norm``, and the global embedding is added.
        """
        entity = getattr(self._relation, side)
        if self._config.max_norm is not None and self._config.entities[entity].trainable:
            x_ND = torch.renorm(x_ND, 2, 0, self._config.max_norm)
        return x_ND + self._params[global_path(entity)] if self._config.global_emb else x_ND


class _Tensors(Mapping[str, "Tensor"]):
    """Arrays as tensors, made when they are looked up.

    A scorer needs few of a model's parameters.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._arrays = arrays

    def __getitem__(self, path: str) -> Tensor:
        return torch.from_numpy(self._arrays[path])

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)
