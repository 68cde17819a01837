"""A small data set in PBG's own layout.

Tests of training and evaluation share it.
"""

from __future__ import annotations

import json

import numpy as np

from pbg_tasks.config import ConfigSchema
from pbg_tasks.formats.arrow_numbers import text_column
from pbg_tasks.formats.edges import EdgeList, edge_file_name, write_edges
from pbg_tasks.formats.embeddings import read_embeddings
from pbg_tasks.formats.entities import write_entity_columns, write_entity_count, write_relation_names

PER_PARTITION = 30


class DataSet:
    """A ring over two partitions or more.

    An edge leads to the next entity (relation 0) or the one after (relation 1).
    """

    def __init__(self, root, partitions=2):
        self.root, self.partitions = root, partitions
        self.entities, self.edges = root / "entities", root / "edges"
        self.entities.mkdir()
        for partition in range(self.partitions):
            write_entity_count(self.entities, "n", partition, PER_PARTITION)
            names = text_column(f"e{partition}_{i}" for i in range(PER_PARTITION))
            write_entity_columns(self.entities, "n", partition, [names])
        write_relation_names(self.entities, ["next", "skip"], dynamic=True)
        self.write_edges(self.edges)

    def write_edges(self, directory, seed=0):
        directory.mkdir()
        total = self.partitions * PER_PARTITION
        lhs = np.tile(np.arange(total), 2)
        rel = np.repeat([0, 1], total)
        rhs = (lhs + rel + 1) % total
        order = np.random.default_rng(seed).permutation(len(lhs))
        lhs, rhs, rel = lhs[order], rhs[order], rel[order]
        for i in range(self.partitions):
            for j in range(self.partitions):
                inside = (lhs % self.partitions == i) & (rhs % self.partitions == j)
                edges = EdgeList(*(ends[inside] // self.partitions for ends in (lhs, rhs)), rel[inside])
                write_edges(directory / edge_file_name(i, j), edges)

    def config(self, checkpoint="model", **changes):
        settings = {
            "entities": {"n": {"num_partitions": self.partitions}},
            "relations": [{"name": "all", "lhs": "n", "rhs": "n", "operator": "complex_diagonal"}],
            "dynamic_relations": True,
            "global_emb": False,
            "dimension": 8,
            "comparator": "dot",
            "loss_fn": "softmax",
            "lr": 0.1,
            "init_scale": 0.1,
            "num_epochs": 2,
            "batch_size": 20,
            "num_batch_negs": 10,
            "num_uniform_negs": 10,
            "eval_fraction": 0.0,
            "workers": 1,
            "entity_path": str(self.entities),
            "edge_paths": (str(self.edges),),
            "checkpoint_path": str(self.root / checkpoint),
        }
        return ConfigSchema.model_validate(settings | changes)

    def embeddings(self, config, version):
        found = [
            read_embeddings(self.root / config.checkpoint_path / f"embeddings_n_{partition}.v{version}.h5")
            for partition in range(self.partitions)
        ]
        return np.concatenate([embeddings for embeddings, _ in found])

    def stats(self, checkpoint="model"):
        text = (self.root / checkpoint / "training_stats.json").read_text()
        return [json.loads(line) for line in text.splitlines()]
