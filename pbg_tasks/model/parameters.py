"""Shared parameters of a model: relations' operators and global embeddings.

The name of a parameter is PBG's path below ``model/`` in its model file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from pbg_tasks.model.families import Families
from pbg_tasks.model.registry import initial, operator

if TYPE_CHECKING:
    from pbg_tasks.config import ModelConfig

Side = Literal["lhs", "rhs"]
SIDES: tuple[Side, Side] = ("lhs", "rhs")
OTHER_SIDE: dict[Side, Side] = {"lhs": "rhs", "rhs": "lhs"}


def operator_path(index: int, side: Side, name: str) -> str:
    """Return the path of an operator's parameter."""
    return f"relations/{index}/operator/{side}/{name}"


def global_path(entity: str) -> str:
    """Return the path of an entity type's global embedding."""
    return f"entities/{entity}/global_embedding"


def initial_parameters(config: ModelConfig, relation_count: int) -> dict[str, torch.Tensor]:
    """Return the initial value of every shared parameter.

    Operators are the identity, global embeddings are zero.

    Args:
        config: the model.
        relation_count: relations in the data, for a config that does not list them.

    Returns:
        float32 tensors. Standard mode has operators on the right-hand side only, in the order of ``relations``; dynamic
        mode has stacked ones for both directions, a stack for each family of relations. A reciprocal relation of
        standard mode has stacks of one.
    """
    params: dict[str, torch.Tensor] = {}
    for index, size in Families(config, relation_count).sizes.items():
        relation = config.relations[index]
        for name, value in initial(relation.operator, config.entity_dimension(relation.lhs)).items():
            if not config.has_two_operators(relation):
                params[operator_path(index, "rhs", name)] = value
                continue
            stacked_name = operator(relation.operator).stacked_name(name)
            for side in SIDES:
                params[operator_path(index, side, stacked_name)] = value.expand(size, *value.shape).clone()
    if config.global_emb:
        for entity in config.entities:
            params[global_path(entity)] = torch.zeros(config.entity_dimension(entity))
    return params
