"""Shared parameters of a model as files hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.model.arrays import INITIAL, STACKED
from pbg_tasks.model.families import Families
from pbg_tasks.model.parameters import SIDES, global_path, operator_path
from pbg_tasks.progress import say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pbg_tasks.config import ModelConfig


def initial_parameters(config: ModelConfig, relation_count: int) -> dict[str, np.ndarray]:
    """Return the initial value of every shared parameter.

    Operators are the identity, global embeddings are zero.

    Args:
        config: the model.
        relation_count: relations in the data, for a config that does not list them.

    Returns:
        float32 arrays. Standard mode has operators on the right-hand side only, in the order of ``relations``; dynamic
        mode has stacked ones for both directions, a stack for each family of relations. A reciprocal relation of
        standard mode has stacks of one.
    """
    params: dict[str, np.ndarray] = {}
    for index, size in Families(config, relation_count).sizes.items():
        relation = config.relations[index]
        for name, value in _initial(relation.operator, config.entity_dimension(relation.lhs)).items():
            if not config.has_two_operators(relation):
                params[operator_path(index, "rhs", name)] = value
                continue
            stacked = _stacked_name(relation.operator, name)
            for side in SIDES:
                params[operator_path(index, side, stacked)] = np.repeat(value[np.newaxis], size, axis=0)
    if config.global_emb:
        for entity in config.entities:
            params[global_path(entity)] = np.zeros(config.entity_dimension(entity), np.float32)
    return params


def fit_shared(
    shapes: Mapping[str, tuple[int, ...]],
    params: Mapping[str, np.ndarray],
    sums: Mapping[str, np.ndarray],
    *,
    dynamic: bool,
) -> bool:
    """Check that stored parameters are those of a model.

    Args:
        shapes: of the model's parameters, by path.
        params: every parameter of the model, of which a dynamic one may lack the last relations; or none, as in a PBG
            checkpoint of vectors alone.
        sums: their sums; or none.
        dynamic: whether relations are.

    Returns:
        Whether there are any: without, an untrained model is meant, and a line is logged.

    Raises:
        FormatError: a parameter is missing, unknown or of another shape.
    """
    if shapes and not params:
        say("model: the checkpoint has no operators or global embeddings; they are those of an untrained model")
        return False
    for path in sorted(shapes.keys() ^ params.keys()):
        where = "not in the model file" if path in shapes else "in the model file, but not of this config"
        raise FormatError(f"model/{path}: {where}; the config's relations or entities are not those it was saved with")
    known = total = 0
    for path, value in (*params.items(), *sums.items()):
        stored, wanted = value.shape, shapes[path]
        grown = dynamic and len(stored) > 1 and stored[1:] == wanted[1:] and stored[0] < wanted[0]
        if stored != wanted and not grown:
            raise FormatError(f"model/{path}: has shape {stored}, the config needs {wanted}")
        if grown:
            known, total = stored[0], wanted[0]
    if total:
        say(f"model: relations that came after the training, and are untrained: {total - known} of {total}")
    return True


def _stacked_name(operator: str, name: str) -> str:
    if operator in INITIAL:
        return STACKED[name]
    from pbg_tasks.model import registry  # takes torch

    return registry.operator(operator).stacked_name(name)


def _initial(operator: str, dimension: int) -> dict[str, np.ndarray]:
    if operator in INITIAL:
        return INITIAL[operator](dimension)
    from pbg_tasks.model.registry import initial  # takes torch

    return {name: value.numpy() for name, value in initial(operator, dimension).items()}
