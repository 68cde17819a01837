"""Shared parameters of one training, with their Adagrad sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pbg_tasks.model.stored_parameters import fit_shared, initial_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from pbg_tasks.config import ModelConfig


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
        self.values = {path: torch.from_numpy(value).to(device) for path, value in start.items()}
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
        shapes = {path: tuple(value.shape) for path, value in self.values.items()}
        if not fit_shared(shapes, params, sums, dynamic=self._dynamic):
            return
        for kept, stored in ((self.values, params), (self.sums, sums)):
            for path, value in stored.items():
                kept[path][: len(value)] = torch.from_numpy(value)

    def arrays(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return parameters and sums as arrays.

        The arrays share memory with them unless they are on another device.
        """
        params = {path: value.cpu().numpy() for path, value in self.values.items()}
        return params, {path: value.cpu().numpy() for path, value in self.sums.items()}
