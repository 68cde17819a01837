"""Training: the order of buckets, the loop over them, the engine that does one, and what is in memory meanwhile."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pbg_tasks.train.engine_torch import TorchEngine
    from pbg_tasks.train.initial import InitialVectors, open_initial
    from pbg_tasks.train.loop import Trainer
    from pbg_tasks.train.newcomers import Newcomers
    from pbg_tasks.train.partitions import PartitionKey, partition_keys
    from pbg_tasks.train.source import StartingPoint

__all__ = [
    "InitialVectors",
    "Newcomers",
    "PartitionKey",
    "StartingPoint",
    "TorchEngine",
    "Trainer",
    "open_initial",
    "partition_keys",
]

_MODULES = {
    "InitialVectors": "initial",
    "Newcomers": "newcomers",
    "PartitionKey": "partitions",
    "StartingPoint": "source",
    "TorchEngine": "engine_torch",
    "Trainer": "loop",
    "open_initial": "initial",
    "partition_keys": "partitions",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any name may be asked for
    """Import what is asked for: nearly all of it takes torch, which a plan does without."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
