"""PyKEEN's training of ComplEx, in an environment of its own.

It knows nothing of this project.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import torch
from pykeen.models import ComplEx
from pykeen.training import LCWATrainingLoop
from pykeen.triples import TriplesFactory

_BATCH = 1000


class Training:
    """ComplEx against all entities, as PyKEEN's users train it.

    Args:
        edges: a bucket in PBG's format.
        entities: in the graph.
        relations: same.
        dimension: floats an entity, two of which are one complex number.
    """

    def __init__(self, edges: str, entities: int, relations: int, dimension: int) -> None:
        torch.set_num_threads(1)
        with h5py.File(Path(edges)) as file:
            columns = [torch.from_numpy(file[name][:]) for name in ("lhs", "rel", "rhs")]
        self._triples = torch.stack(columns, dim=1)
        self._ids = [{str(number): number for number in range(count)} for count in (entities, relations)]
        factory = self._factory(self._triples[:_BATCH])
        self._model = ComplEx(triples_factory=factory, embedding_dim=dimension // 2, loss="crossentropy", random_seed=0)
        self._loop = LCWATrainingLoop(model=self._model, triples_factory=factory, optimizer="adagrad")

    def _factory(self, triples: torch.Tensor) -> TriplesFactory:
        entities, relations = self._ids
        return TriplesFactory(triples, entity_to_id=entities, relation_to_id=relations)

    def train(self, edges: int) -> int:
        """Train that many edges, drawn without replacement, and return their number."""
        chosen = self._factory(self._triples[torch.randperm(len(self._triples))[:edges]])
        self._loop.train(chosen, num_epochs=1, batch_size=_BATCH, use_tqdm=False, use_tqdm_batch=False)
        return int(chosen.num_triples)
