"""Small checkpoint directories, written as PBG writes them."""

from __future__ import annotations

import numpy as np

from pbg_tasks.config import ConfigSchema
from pbg_tasks.formats.embeddings import IterationInfo, embeddings_file_name, write_embeddings
from pbg_tasks.formats.model import ModelState, model_file_name, write_model

INFO = IterationInfo(1, 0, 1, 0, "edges", 1, 0)
REAL = "relations/0/operator/rhs/real"


def make_config(init_path=None, *, partitions=2, dimension=4, types=("user", "item"), operator="complex_diagonal"):
    return ConfigSchema.model_validate(
        {
            "entities": {name: {"num_partitions": partitions} for name in types},
            "relations": [{"name": "r", "lhs": types[0], "rhs": types[-1], "operator": operator}],
            "dimension": dimension,
            "init_path": None if init_path is None else str(init_path),
            "entity_path": "entities",
            "edge_paths": ["edges"],
            "checkpoint_path": "checkpoint",
        }
    )


def rows(entity, partition, count, dimension=4):
    """Return embeddings and row sums unique to a partition."""
    generator = np.random.default_rng([len(entity), partition])
    return generator.normal(size=(count, dimension)).astype(np.float32), generator.random(count, dtype=np.float32)


def write_checkpoint(directory, config, counts, *, version=3, model=None, has_sums=True):
    """Write every partition of ``counts`` and the model, and name the version."""
    directory.mkdir(parents=True, exist_ok=True)
    for (entity, partition), count in counts.items():
        path = directory / embeddings_file_name(entity, partition, version)
        embeddings, sums = rows(entity, partition, count, config.entity_dimension(entity))
        write_embeddings(path, embeddings, sums if has_sums else None, lr=0.1, iteration=INFO, config=config)
    if model is not None:
        write_model(directory / model_file_name(version), model, config=config, iteration=INFO)
    (directory / "checkpoint_version.txt").write_text(f"{version}\n")


def model_state(value, *paths, shape=(2,)):
    params = {path: np.full(shape, value, np.float32) for path in paths}
    return ModelState(params, {path: array * 10 for path, array in params.items()})
