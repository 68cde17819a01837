"""State that every rank has a copy of.

It consists of relation parameters, global embeddings, and entity types with one partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.formats.model import ModelState, model_file_name, read_model, write_model
from pbg_tasks.training.data.finite import check_finite
from pbg_tasks.training.data.partitions import PartitionKey
from pbg_tasks.training.data.tables import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from torch import Tensor

    from pbg_tasks.checkpoint import StoredObject
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.training.engine.base import Engine
    from pbg_tasks.training.ranks.parameters.step_lock import StepLock
    from pbg_tasks.training.ranks.partitions.partition_store import PartitionStore
    from pbg_tasks.training.starting_point import StartingPoint


_VALUES, _SUMS, _ROWS, _ROW_SUMS = "model/", "model sums/", "rows/", "row sums/"  # how names of tensors begin


class SharedState:
    """This rank's copy, trained in place.

    Args:
        config: which types have one partition.
        engine: has the parameters.
        start: gives the tables as they were before the gang began.

    Attributes:
        tables: of the types with one partition, by type.
    """

    def __init__(self, config: ConfigSchema, engine: Engine, start: StartingPoint) -> None:
        self._config, self._engine = config, engine
        single = [name for name, entity in config.entities.items() if entity.num_partitions == 1]
        self.tables: dict[str, Table] = {name: start.table(PartitionKey(name, 0)) for name in single}

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that ranks exchange, by name, with the optimizer's sums."""
        shared = self._engine.shared
        found = {f"{_VALUES}{path}": value for path, value in shared.values.items()}
        found |= {f"{_SUMS}{path}": value for path, value in shared.sums.items()}
        for name, table in self.tables.items():
            found |= {f"{_ROWS}{name}": table.embeddings, f"{_ROW_SUMS}{name}": table.row_sums}
        return found

    def load(self, stored: Mapping[str, StoredObject], partition_store: PartitionStore) -> None:
        """Take over the state in a record of the iteration under way.

        Raises:
            FormatError: an object is damaged, or of another model.
        """
        model = model_file_name(partition_store.stamp.version)
        for name, each in stored.items():
            if name == model:
                path = partition_store.partial.fetch(each, partition_store.scratch / "taken")
                state = read_model(path)
                path.unlink()
                self._engine.load_parameters(state.params, state.sums)
        for name, table in self.tables.items():
            file = embeddings_file_name(name, 0, partition_store.stamp.version)
            if file in stored:
                there = partition_store.get(stored[file])
                table.embeddings.copy_(there.embeddings)
                table.row_sums.copy_(there.row_sums)

    def store(self, number: int, partition_store: PartitionStore, step_lock: StepLock) -> dict[str, StoredObject]:
        """Store the state between two steps; return PBG's files.

        Args:
            number: that no other store of this gang has.
            partition_store: stores it.
            step_lock: that every step goes through.

        Raises:
            TrainingDivergedError: a value is not finite, and a training that started from it would diverge at once.
        """
        folder = f"shared.{number}"
        directory = partition_store.scratch / folder
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / model_file_name(partition_store.stamp.version)
        with step_lock.alone():  # for no longer than a copy takes
            copies = {name: tensor.to("cpu", copy=True) for name, tensor in self.tensors().items()}
        for name, tensor in copies.items():
            check_finite(name, tensor)
        state = ModelState(_arrays(copies, _VALUES), _arrays(copies, _SUMS), self._engine.loops)
        write_model(path, state, config=self._config, iteration=partition_store.stamp.iteration)
        stored = {path.name: partition_store.partial.put(path, folder)}
        path.unlink()
        for name in self.tables:
            key, table = PartitionKey(name, 0), Table(copies[f"{_ROWS}{name}"], copies[f"{_ROW_SUMS}{name}"])
            stored[embeddings_file_name(*key, partition_store.stamp.version)] = partition_store.put(key, table, folder)
        directory.rmdir()
        return stored


def _arrays(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, np.ndarray]:
    """Return the tensors of a kind, without the prefix of their names."""
    return {name.removeprefix(prefix): tensor.numpy() for name, tensor in tensors.items() if name.startswith(prefix)}
