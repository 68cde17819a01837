"""Training: the order of buckets, the loop over them, the engine that does one, and what is in memory meanwhile."""

from __future__ import annotations

from pbg_tasks.train.engine_torch import TorchEngine
from pbg_tasks.train.initial import InitialVectors, open_initial
from pbg_tasks.train.loop import Trainer
from pbg_tasks.train.partitions import PartitionKey, partition_keys
from pbg_tasks.train.source import StartingPoint

__all__ = [
    "InitialVectors",
    "PartitionKey",
    "StartingPoint",
    "TorchEngine",
    "Trainer",
    "open_initial",
    "partition_keys",
]
