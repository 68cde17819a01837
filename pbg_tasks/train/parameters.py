"""Shared parameters of a model: the relations' operators and the global embeddings, with their Adagrad sums.

They are kept by PBG's path below ``model/``, which is also how the model file names them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pbg_tasks.errors import FormatError
from pbg_tasks.model.operators import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from pbg_tasks.config import ModelConfig


def operator_path(index: int, side: str, name: str) -> str:
    """Return the path of an operator's parameter."""
    return f"relations/{index}/operator/{side}/{name}"


def global_path(entity: str) -> str:
    """Return the path of an entity type's global embedding."""
    return f"entities/{entity}/global_embedding"


def initial_parameters(config: ModelConfig, relation_count: int) -> dict[str, torch.Tensor]:
    """Return every shared parameter as it starts: operators as the identity, global embeddings as zero.

    Args:
        config: the model.
        relation_count: relations in dynamic mode; the leading axis of each operator's parameters.
    """
    params: dict[str, torch.Tensor] = {}
    for index, relation in enumerate(config.relations):
        operator = OPERATORS[relation.operator]
        values = operator.initial(config.entity_dimension(relation.lhs))
        for side in ("lhs", "rhs") if config.dynamic_relations else ("rhs",):
            for name, value in values.items():
                if config.dynamic_relations:
                    stacked = value.expand(relation_count, *value.shape).clone()
                    params[operator_path(index, side, operator.plural[name])] = stacked
                else:
                    params[operator_path(index, side, name)] = value.clone()
    if config.global_emb:
        for entity in config.entities:
            params[global_path(entity)] = torch.zeros(config.entity_dimension(entity))
    return params


class SharedParameters:
    """The parameters and sums of one training.

    Args:
        config: the model.
        relation_count: relations in dynamic mode.
    """

    def __init__(self, config: ModelConfig, relation_count: int) -> None:
        self.values = initial_parameters(config, relation_count)
        self.sums = {path: torch.zeros_like(value) for path, value in self.values.items()}

    def load(self, params: Mapping[str, np.ndarray], sums: Mapping[str, np.ndarray]) -> None:
        """Take over stored parameters; relations that came since keep their start.

        Raises:
            FormatError: a parameter is missing, unknown or of another shape.
        """
        unknown, missing = set(params) - set(self.values), set(self.values) - set(params)
        if unknown or missing:
            raise FormatError(f"model parameters do not fit the config: {sorted(unknown | missing)[0]!r}")
        for target, source in ((self.values, params), (self.sums, sums)):
            for path, value in source.items():
                _take(path, target[path], torch.from_numpy(value))

    def arrays(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return parameters and sums as arrays over the same memory."""
        params, sums = ({path: value.numpy() for path, value in kept.items()} for kept in (self.values, self.sums))
        return params, sums


def _take(path: str, target: torch.Tensor, source: torch.Tensor) -> None:
    grows = path.startswith("relations/") and target.dim() == source.dim() and len(source) <= len(target)
    if target.shape != source.shape and not (grows and target.shape[1:] == source.shape[1:]):
        raise FormatError(f"model/{path}: has shape {tuple(source.shape)}, the config needs {tuple(target.shape)}")
    target[: len(source)] = source
