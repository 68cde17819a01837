"""Inner products of embeddings in numpy, for tasks that rank and compare.

To import torch takes as long as all else that a small evaluation does. So built-in operators and the comparators that
are inner products are here a second time, forward only; every other model is scored by torch, behind the same methods.
Arrays are float32, but scores that are computed again are float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pbg_tasks.config.comparators import PRODUCTS, facts_of, is_product
from pbg_tasks.model.parameters import OTHER_SIDE, global_path, operator_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.model.on_tensors import TensorLikeness, TensorScorer
    from pbg_tasks.model.parameters import Side

    Params = Mapping[str, np.ndarray]
    Scorer: TypeAlias = "ProductScorer | TensorScorer"
    Likeness: TypeAlias = "ProductLikeness | TensorLikeness"

STACKED = {
    "translation": "translations",
    "diagonal": "diagonals",
    "real": "real",
    "imag": "imag",
    "linear_transformation": "linear_transformations",
}
"""Names of parameters when they are stacked over relations."""
_MATRIX = "linear_transformation"
_RENORM = 1e-7  # added to a norm before the division, as ``torch.renorm`` does


def scorer(config: ModelConfig, family: int, params: Params) -> Scorer:
    """Return the scorer of a family.

    Args:
        config: the model.
        family: index of its first relation in ``config.relations``.
        params: shared parameters by PBG's path below ``model/``.
    """
    if is_product(config) and config.relations[family].operator in INITIAL:
        return ProductScorer(config, family, params)
    from pbg_tasks.model.on_tensors import TensorScorer  # takes torch

    return TensorScorer(config, family, params)


class ProductScorer:
    """Scores that are inner products; the arguments are those of ``scorer``.

    As in PBG, the operator works on the known end with dynamic relations, by the operators of that side; in standard
    mode it works on the right-hand end, known or not. Reciprocal relations work as dynamic ones do.
    """

    def __init__(self, config: ModelConfig, family: int, params: Params) -> None:
        self._config, self._params = config, params
        self._family, self._relation = family, config.relations[family]
        self._two_operators = config.has_two_operators(self._relation)
        self._normalized = facts_of(config.comparator).normalized

    def queries(self, known_QD: np.ndarray, row_Q: np.ndarray, *, predict: Side) -> np.ndarray:
        """Return queries for comparison with candidates, from the known ends.

        Args:
            known_QD: raw embeddings.
            row_Q: int64, relations by their row in the family (``Families.row``); used with two operators.
            predict: side of the candidates.
        """
        side = OTHER_SIDE[predict]
        x_QD = self._looked_up(known_QD, side)
        if self._two_operators:
            x_QD = self._by_relation(x_QD, side, row_Q)
        elif side == "rhs":
            x_QD = self._shared(x_QD)
        return self._prepared(x_QD)

    def candidates(self, raw_KD: np.ndarray, *, predict: Side) -> np.ndarray:
        """Return candidates from raw embeddings (K, D) of the predicted side."""
        x_KD = self._looked_up(raw_KD, predict)
        if not self._two_operators and predict == "rhs":
            x_KD = self._shared(x_KD)
        return self._prepared(x_KD)

    @staticmethod
    def score(query_QD: np.ndarray, candidate_KD: np.ndarray) -> np.ndarray:
        """Compare all queries with all candidates: (Q, K)."""
        score_QK: np.ndarray = query_QD @ candidate_KD.T
        return score_QK

    @staticmethod
    def score_pairs(query_QD: np.ndarray, candidate_QD: np.ndarray) -> np.ndarray:
        """Compare queries with candidates row by row: (Q,)."""
        return dots(query_QD, candidate_QD)

    def _shared(self, x_ND: np.ndarray) -> np.ndarray:
        """Apply the one operator that all relations of the family share."""
        names = _NAMES[self._relation.operator]
        params = {name: self._params[operator_path(self._family, "rhs", name)] for name in names}
        return _FORWARD[self._relation.operator](x_ND, params)

    def _by_relation(self, x_ND: np.ndarray, side: Side, row_N: np.ndarray) -> np.ndarray:
        """Apply the operator of each row's own relation."""
        names, forward = _NAMES[self._relation.operator], _FORWARD[self._relation.operator]
        params = {name: self._params[operator_path(self._family, side, STACKED[name])] for name in names}
        if _MATRIX not in params:
            return forward(x_ND, {name: value[row_N] for name, value in params.items()})
        found_ND = np.empty_like(x_ND)  # a matrix is too large to be copied for each row
        for row in np.unique(row_N).tolist():
            own = row_N == row
            found_ND[own] = forward(x_ND[own], {name: value[row] for name, value in params.items()})
        return found_ND

    def _looked_up(self, x_ND: np.ndarray, side: Side) -> np.ndarray:
        """Return embeddings as training looks them up."""
        entity = getattr(self._relation, side)
        longest = self._config.max_norm
        if longest is not None and self._config.entities[entity].trainable:
            norm_N1 = norms(x_ND)[:, np.newaxis]
            x_ND = np.where(norm_N1 > longest, x_ND * (np.float32(longest) / (norm_N1 + np.float32(_RENORM))), x_ND)
        return x_ND + self._params[global_path(entity)] if self._config.global_emb else x_ND

    def _prepared(self, x_ND: np.ndarray) -> np.ndarray:
        return unit(x_ND) if self._normalized else x_ND


def likeness(config: ModelConfig, params: Params, entity: str) -> Likeness:
    """Return the similarity of a type's entities.

    Args:
        config: of the model.
        params: shared parameters.
        entity: the type.
    """
    if config.comparator in PRODUCTS:
        return ProductLikeness(config, params, entity)
    from pbg_tasks.model.on_tensors import TensorLikeness  # takes torch

    return TensorLikeness(config, params, entity)


class ProductLikeness:
    """Similarity that is an inner product; the arguments are those of ``likeness``."""

    is_product = True

    def __init__(self, config: ModelConfig, params: Params, entity: str) -> None:
        self._normalized = facts_of(config.comparator).normalized
        self._first = 1 if config.bias else 0
        self._global = params[global_path(entity)] if config.global_emb else None

    def vectors(self, raw_KD: np.ndarray) -> np.ndarray:
        """Return vectors from raw embeddings, before the comparator prepares them."""
        x_KD = raw_KD if self._global is None else raw_KD + self._global
        return np.ascontiguousarray(x_KD[:, self._first :])

    def candidates(self, raw_KD: np.ndarray) -> np.ndarray:
        """Return candidates from raw embeddings."""
        return unit(self.vectors(raw_KD)) if self._normalized else self.vectors(raw_KD)

    score = staticmethod(ProductScorer.score)
    score_pairs = staticmethod(ProductScorer.score_pairs)


def dots(a_ND: np.ndarray, b_ND: np.ndarray) -> np.ndarray:
    """Return the inner products of rows, (N,)."""
    found: np.ndarray = np.einsum("nd,nd->n", a_ND, b_ND)
    return found


def norms(x_ND: np.ndarray) -> np.ndarray:
    """Return the lengths of rows, (N,)."""
    found: np.ndarray = np.sqrt(dots(x_ND, x_ND))
    return found


def unit(x_ND: np.ndarray) -> np.ndarray:
    """Return rows at length 1; those of zeros stay zeros."""
    norm_N1 = norms(x_ND)[:, np.newaxis]
    norm_N1[norm_N1 == 0] = 1
    found: np.ndarray = x_ND / norm_N1
    return found


def _complex(x_ND: np.ndarray, params: Params) -> np.ndarray:
    real, imag = np.split(x_ND, 2, axis=-1)
    a, b = params["real"], params["imag"]
    return np.concatenate((real * a - imag * b, real * b + imag * a), axis=-1)


def _linear(x_ND: np.ndarray, params: Params) -> np.ndarray:
    found_ND: np.ndarray = x_ND @ params[_MATRIX].T
    return found_ND


def _zeros(dimension: int) -> np.ndarray:
    return np.zeros(dimension, np.float32)


def _ones(dimension: int) -> np.ndarray:
    return np.ones(dimension, np.float32)


def _identity(dimension: int) -> np.ndarray:
    return np.eye(dimension, dtype=np.float32)


INITIAL: Mapping[str, Callable[[int], dict[str, np.ndarray]]] = {
    "none": lambda _: {},
    "translation": lambda dimension: {"translation": _zeros(dimension)},
    "diagonal": lambda dimension: {"diagonal": _ones(dimension)},
    "complex_diagonal": lambda dimension: {"real": _ones(dimension // 2), "imag": _zeros(dimension // 2)},
    "linear": lambda dimension: {_MATRIX: _identity(dimension)},
    "affine": lambda dimension: {_MATRIX: _identity(dimension), "translation": _zeros(dimension)},
}
"""Parameters of one relation by operator, for a dimension: those of the identity."""
_NAMES = {operator: tuple(initial(2)) for operator, initial in INITIAL.items()}  # the same for any dimension
_FORWARD: Mapping[str, Callable[[np.ndarray, Params], np.ndarray]] = {
    "none": lambda x_ND, _: x_ND,
    "translation": lambda x_ND, params: x_ND + params["translation"],
    "diagonal": lambda x_ND, params: params["diagonal"] * x_ND,
    "complex_diagonal": _complex,
    "linear": _linear,
    "affine": lambda x_ND, params: _linear(x_ND, params) + params["translation"],
}
"""Operators, as ``model.operators`` has them."""
