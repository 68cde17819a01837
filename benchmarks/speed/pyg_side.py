"""ComplEx of PyTorch Geometric (PyG), in an environment of its own.

It knows nothing of this project.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import torch
from torch_geometric.nn import ComplEx

_BATCH = 1000
_RATE = 0.1


class Training:
    """PyG's loader, model and loss: one drawn negative for each edge.

    Args:
        edges: a bucket in PBG's format.
        entities: in the graph.
        relations: same.
        dimension: floats an entity, two of which are one complex number.
    """

    def __init__(self, edges: str, entities: int, relations: int, dimension: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        with h5py.File(Path(edges)) as file:
            lhs, rel, rhs = (torch.from_numpy(file[name][:]) for name in ("lhs", "rel", "rhs"))
        self._model = ComplEx(entities, relations, dimension // 2, sparse=True)
        self._loader = self._model.loader(lhs, rel, rhs, batch_size=_BATCH, shuffle=True)
        self._optimizer = torch.optim.Adagrad(self._model.parameters(), lr=_RATE)

    def train(self, epochs: int, out: str) -> int:
        """Train so many more epochs, and write vectors as npz.

        The arrays are ``entities`` (n, d) and ``relations`` (r, d), each with real parts first. Returns the number of
        batches.
        """
        for _ in range(epochs):
            for lhs, rel, rhs in self._loader:
                self._optimizer.zero_grad()
                self._model.loss(lhs, rel, rhs).backward()
                self._optimizer.step()
        parts = {name: part.detach().numpy() for name, part in self._model.named_parameters()}
        entities, relations = (
            np.concatenate((parts[f"{name}.weight"], parts[f"{name}_im.weight"]), axis=1)
            for name in ("node_emb", "rel_emb")
        )
        np.savez(out, entities=entities, relations=relations)
        return epochs * len(self._loader)
