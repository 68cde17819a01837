"""Contents of a plain checkpoint directory, read with this project's readers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.formats.directory import read_checkpoint_version
from pbg_tasks.formats.embeddings import embeddings_file_name, read_embeddings
from pbg_tasks.formats.model import model_file_name, read_model

if TYPE_CHECKING:
    from pbg_tasks.config import ConfigSchema


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The newest version: every array and every Adagrad sum by name."""

    version: int
    values: dict[str, np.ndarray]
    sums: dict[str, np.ndarray]


def snapshot(config: ConfigSchema) -> Snapshot:
    """Read the newest version, which must be complete and have sums."""
    directory = Path(config.checkpoint_path)
    version = read_checkpoint_version((directory / "checkpoint_version.txt").read_bytes(), source="version")
    values, sums = {}, {}
    for entity, schema in config.entities.items():
        for partition in range(schema.num_partitions):
            name = embeddings_file_name(entity, partition, version)
            values[name.split(".")[0]], found = read_embeddings(directory / name)
            assert found is not None, f"{name} has no optimizer state"
            sums[name.split(".")[0]] = found
    model = read_model(directory / model_file_name(version))
    assert model.sums.keys() == model.params.keys()
    return Snapshot(version, values | model.params, sums | model.sums)


def files_of(config: ConfigSchema, version: int) -> set[str]:
    """Return the names of a version's existing data files."""
    return {path.name for path in Path(config.checkpoint_path).glob(f"*.v{version}.h5")}


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest absolute difference over the largest absolute value."""
    return float(np.abs(one - other).max() / max(np.abs(other).max(), 1e-30))
