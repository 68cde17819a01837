from __future__ import annotations

import json

import numpy as np
import pytest

from pbg_tasks.config import ConfigSchema
from pbg_tasks.formats.directory import checkpoint_version_bytes, config_bytes
from pbg_tasks.formats.embeddings import IterationInfo, embeddings_file_name, write_embeddings
from pbg_tasks.formats.entities import entity_names_file_name, write_entity_count, write_relation_names
from pbg_tasks.formats.model import ModelState, model_file_name, write_model
from pbg_tasks.model.stored_parameters import initial_parameters

INFO = IterationInfo(1, 0, 1, 0, "edges", 1, 0)


class Trained:
    """A plain PBG directory with random numbers, and these numbers."""

    def __init__(self, root, *, version=3, seed=0, relation_names=(), sizes=None, checkpoint=None, loops=None, **keys):
        rng = np.random.default_rng(seed)
        entities = keys.pop("entities", {"n": {"num_partitions": 3}})
        self.root = root
        self.checkpoint = checkpoint or root / "checkpoint"
        paths = {
            "entity_path": str(root / "entities"),
            "edge_paths": [str(root / "edges")],
            "checkpoint_path": str(self.checkpoint),
        }
        paths |= {key: keys.pop(key) for key in list(paths) if key in keys}
        self.config = ConfigSchema.model_validate(
            {
                "entities": entities,
                "relations": [{"name": "r", "lhs": "n", "rhs": "n", "operator": "translation"}],
                "dimension": 8,
                "global_emb": False,
                **paths,
                **keys,
            }
        )
        self.version = version
        self.relations = list(relation_names) or [relation.name for relation in self.config.relations]
        self.checkpoint.mkdir(parents=True)
        (root / "entities").mkdir(exist_ok=True)
        write_relation_names(root / "entities", self.relations, dynamic=self.config.dynamic_relations)
        self.names, self.vectors = {}, {}
        for entity, schema in self.config.entities.items():
            self._write_entity(entity, schema, (sizes or {}).get(entity, 50), rng)
        start = initial_parameters(self.config, len(self.relations))
        self.params = {
            name: (value + rng.normal(size=value.shape) * 0.3).astype(np.float32) for name, value in start.items()
        }
        state = ModelState(self.params, loops=None if loops is None else np.array(loops, np.int64))
        write_model(self.checkpoint / model_file_name(version), state, config=self.config, iteration=INFO)
        (self.checkpoint / "config.json").write_bytes(config_bytes(self.config))
        (self.checkpoint / "checkpoint_version.txt").write_bytes(checkpoint_version_bytes(version))

    def _write_entity(self, entity, schema, size, rng):
        self.names[entity], vectors = [], []
        dimension = self.config.entity_dimension(entity)
        for partition in range(schema.num_partitions):
            names = [f"{entity}{partition}_{i}" for i in range(size + partition)]
            rows = rng.normal(size=(len(names), dimension)).astype(np.float32)
            write_entity_count(self.root / "entities", entity, partition, len(names))
            self.rename(entity, partition, names)
            name = embeddings_file_name(entity, partition, self.version)
            write_embeddings(self.checkpoint / name, rows, None, lr=0.1, iteration=INFO, config=self.config)
            self.names[entity] += names
            vectors.append(rows)
        self.vectors[entity] = np.concatenate(vectors)

    def rewrite(self, entity, partition, rows):
        """Replace a partition's embeddings."""
        name = embeddings_file_name(entity, partition, self.version)
        write_embeddings(self.checkpoint / name, rows, None, lr=0.1, iteration=INFO, config=self.config)

    def rename(self, entity, partition, names):
        """Write a partition's names."""
        path = self.root / "entities" / entity_names_file_name(entity, partition)
        path.write_text(json.dumps(names, indent=4), encoding="ascii")


@pytest.fixture
def trained(tmp_path, scratch):
    """Make plain directories below a temporary one."""

    def make(**keys):
        return Trained(tmp_path / "data", **keys)

    return make
