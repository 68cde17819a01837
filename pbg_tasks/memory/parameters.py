"""Number of a model's shared parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pbg_tasks.config import ModelConfig

_MATRICES = {"linear": 1, "affine": 1}
_VECTORS = {"none": 0, "translation": 1, "diagonal": 1, "complex_diagonal": 1, "linear": 0, "affine": 1}


def operator_size(operator: str, dimension: int) -> int:
    """Return the number of parameters of one relation's operator.

    The parameters of an operator that is not built in are counted by torch.
    """
    if operator in _VECTORS:
        return _MATRICES.get(operator, 0) * dimension**2 + _VECTORS[operator] * dimension
    from pbg_tasks.model.registry import initial

    return sum(value.numel() for value in initial(operator, dimension).values())


def parameter_count(config: ModelConfig, relation_count: int) -> int:
    """Return the number of parameters of all operators and global embeddings.

    It counts those of ``model.stored_parameters.initial_parameters``.
    """
    total = 0
    for relation in config.relations:
        sides = 2 if config.has_two_operators(relation) else 1
        many = relation_count if config.relations_from_data else 1
        total += sides * many * operator_size(relation.operator, config.entity_dimension(relation.lhs))
    return total + (sum(map(config.entity_dimension, config.entities)) if config.global_emb else 0)
