"""What every rank has a copy of: relation parameters, global embeddings, and entity types with one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.formats.model import ModelState, model_file_name, read_model, write_model
from pbg_tasks.train.finite import check_finite
from pbg_tasks.train.partitions import PartitionKey
from pbg_tasks.train.tables import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from pbg_tasks.checkpoint import StoredObject
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.train.engine import Engine
    from pbg_tasks.train.ranks.gate import Gate
    from pbg_tasks.train.ranks.shelf import Shelf
    from pbg_tasks.train.source import StartingPoint


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
        """Return everything by name, with its optimizer's sums, as ranks exchange it."""
        shared = self._engine.shared
        found = {f"{_VALUES}{path}": value for path, value in shared.values.items()}
        found |= {f"{_SUMS}{path}": value for path, value in shared.sums.items()}
        for name, table in self.tables.items():
            found |= {f"{_ROWS}{name}": table.embeddings, f"{_ROW_SUMS}{name}": table.row_sums}
        return found

    def load(self, stored: Mapping[str, StoredObject], shelf: Shelf) -> None:
        """Take over what a record of the iteration under way has.

        Raises:
            FormatError: it is damaged, or of another model.
        """
        model = model_file_name(shelf.stamp.version)
        for name, each in stored.items():
            if name == model:
                path = shelf.partial.fetch(each, shelf.scratch / "taken")
                state = read_model(path)
                path.unlink()
                self._engine.load_parameters(state.params, state.sums)
        for name, table in self.tables.items():
            file = embeddings_file_name(name, 0, shelf.stamp.version)
            if file in stored:
                there = shelf.get(stored[file])
                table.embeddings.copy_(there.embeddings)
                table.row_sums.copy_(there.row_sums)

    def store(self, number: int, shelf: Shelf, gate: Gate) -> dict[str, StoredObject]:
        """Store all of it between two steps, and return it by PBG's file name.

        Args:
            number: that no other store of this gang has.
            shelf: stores it.
            gate: that every step goes through.

        Raises:
            TrainingDivergedError: some of it is not finite, and whoever went on from there would diverge at once.
        """
        folder = f"shared.{number}"
        directory = shelf.scratch / folder
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / model_file_name(shelf.stamp.version)
        with gate.alone():  # for no longer than a copy takes
            copies = {name: tensor.to("cpu", copy=True) for name, tensor in self.tensors().items()}
        for name, tensor in copies.items():
            check_finite(name, tensor)
        params, sums = (
            {name.removeprefix(prefix): tensor.numpy() for name, tensor in copies.items() if name.startswith(prefix)}
            for prefix in (_VALUES, _SUMS)
        )
        state = ModelState(params, sums, self._engine.loops)
        write_model(path, state, config=self._config, iteration=shelf.stamp.iteration)
        stored = {path.name: shelf.partial.put(path, folder)}
        path.unlink()
        for name in self.tables:
            key, table = PartitionKey(name, 0), Table(copies[f"{_ROWS}{name}"], copies[f"{_ROW_SUMS}{name}"])
            stored[embeddings_file_name(*key, shelf.stamp.version)] = shelf.put(key, table, folder)
        directory.rmdir()
        return stored
