"""Partitions of a small model, on a slow disk."""

from __future__ import annotations

import random
import time
import weakref
from typing import TYPE_CHECKING

import torch

from pbg_tasks.config import ConfigSchema
from pbg_tasks.formats.embeddings import IterationInfo
from pbg_tasks.training.data.partition_files import Stamp
from pbg_tasks.training.data.tables import Table

if TYPE_CHECKING:
    from pbg_tasks.training.data.partitions import PartitionKey

ROWS, DIMENSION = 3, 2


def make_config(partitions, ends, buffer=None, bucket_order="inside_out", **changes):
    """Return a config of relations, given as pairs of types."""
    return ConfigSchema.model_validate(
        {
            "entities": {name: {"num_partitions": count} for name, count in partitions.items()},
            "relations": [{"name": f"{lhs}-{rhs}", "lhs": lhs, "rhs": rhs} for lhs, rhs in ends],
            "dimension": DIMENSION,
            "partition_buffer": buffer,
            "bucket_order": bucket_order,
            "entity_path": "entities",
            "edge_paths": ["edges"],
            "checkpoint_path": "checkpoint",
        }
        | changes
    )


def stamp(version):
    return Stamp(version, IterationInfo(9, version - 1, 1, 0, "edges", 1, 0))


def first_table(key):
    start = float(1 + 10 * key.partition + 1000 * ord(key.entity[0]))
    return Table(torch.full((ROWS, DIMENSION), start), torch.full((ROWS,), start))


class Disk:
    """Disk that sleeps at each access and counts tables in memory.

    A table that two threads have at once would change while it sleeps, or be seen half changed.
    """

    def __init__(self, seed=0, longest=0.0):
        self._random, self._longest = random.Random(seed), longest
        self.alive: dict[PartitionKey, weakref.WeakSet[torch.Tensor]] = {}
        self.read: list[PartitionKey] = []
        self.most = 0

    def sleep(self):
        time.sleep(self._random.random() * self._longest)

    def watch(self, key, table):
        self.read.append(key)
        self.alive.setdefault(key, weakref.WeakSet()).add(table.embeddings)
        assert len(self.alive[key]) == 1, "a partition is in memory twice"
        self.most = max(self.most, sum(map(len, self.alive.values())))
        return table

    def table(self, key):
        self.sleep()
        return self.watch(key, first_table(key))
