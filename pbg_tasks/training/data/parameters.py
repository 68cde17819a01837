"""Shared parameters of one training, with their Adagrad sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pbg_tasks.errors import FormatError
from pbg_tasks.model.families import Families
from pbg_tasks.model.parameters import SIDES, global_path, operator_path
from pbg_tasks.model.registry import initial, operator
from pbg_tasks.progress import say

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from pbg_tasks.config import ModelConfig


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


class SharedParameters:
    """Operators and global embeddings, which are trained in place.

    Args:
        config: the model.
        relation_count: number of relations in dynamic mode.
        device: device on which they are trained.

    Attributes:
        values: parameters by PBG's path below ``model/``.
        sums: accumulated squared gradients, with the same paths and shapes.
    """

    def __init__(self, config: ModelConfig, relation_count: int, device: torch.device | None = None) -> None:
        self._dynamic = config.dynamic_relations
        start = initial_parameters(config, relation_count)
        self.values = {path: value.to(device) for path, value in start.items()}
        self.sums = {path: torch.zeros_like(value) for path, value in self.values.items()}

    def load(self, params: Mapping[str, np.ndarray], sums: Mapping[str, np.ndarray]) -> None:
        """Load stored parameters.

        With dynamic relations, relations that came since keep their start.

        Args:
            params: every parameter of the model; or none, as in a PBG checkpoint of vectors alone, and all keep their
                start.
            sums: their sums; or none, and they start at 0.

        Raises:
            FormatError: a parameter is missing, unknown or of another shape; nothing was loaded.
        """
        if self.values and not params:
            say("model: the checkpoint has no operators or global embeddings; they are those of an untrained model")
            return
        for path in sorted(self.values.keys() ^ params.keys()):
            where = "not in the model file" if path in self.values else "in the model file, but not of this config"
            raise FormatError(
                f"model/{path}: {where}; the config's relations or entities are not those it was saved with"
            )
        for path, value in (*params.items(), *sums.items()):
            self._check_shape(path, value.shape)
        for kept, stored in ((self.values, params), (self.sums, sums)):
            for path, value in stored.items():
                kept[path][: len(value)] = torch.from_numpy(value)

    def _check_shape(self, path: str, stored: tuple[int, ...]) -> None:
        wanted = tuple(self.values[path].shape)
        grown = self._dynamic and len(stored) > 1 and stored[1:] == wanted[1:] and stored[0] < wanted[0]
        if stored != wanted and not grown:
            raise FormatError(f"model/{path}: has shape {stored}, the config needs {wanted}")

    def arrays(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return parameters and sums as arrays.

        The arrays share memory with them unless they are on another device.
        """
        params = {path: value.cpu().numpy() for path, value in self.values.items()}
        return params, {path: value.cpu().numpy() for path, value in self.sums.items()}
