"""Training: the order of buckets, the loop, and its engine.

The package also manages the partitions that are in memory meanwhile.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pbg_tasks.train.data.initial import InitialVectors, open_initial
    from pbg_tasks.train.data.newcomers import Newcomers
    from pbg_tasks.train.data.partitions import PartitionKey, partition_keys
    from pbg_tasks.train.engine.on_torch import TorchEngine
    from pbg_tasks.train.starting_point import StartingPoint

__all__ = [
    "InitialVectors",
    "Newcomers",
    "PartitionKey",
    "StartingPoint",
    "TorchEngine",
    "open_initial",
    "partition_keys",
]

_MODULES = {
    "InitialVectors": "data.initial",
    "Newcomers": "data.newcomers",
    "PartitionKey": "data.partitions",
    "StartingPoint": "starting_point",
    "TorchEngine": "engine.on_torch",
    "open_initial": "data.initial",
    "partition_keys": "data.partitions",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any name may be asked for
    """Import a name of the package at its first use.

    Nearly all modules import torch, which a plan does not need.
    """
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
