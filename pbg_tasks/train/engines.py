"""Which engine trains: the one that was asked for, or the fastest that covers the config."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.progress import say

if TYPE_CHECKING:
    from pbg_tasks.config import ModelConfig
    from pbg_tasks.config.graph import EngineName
    from pbg_tasks.train.engine import Engine


def engine_name(name: EngineName, config: ModelConfig) -> tuple[str, str]:
    """Return the name of the engine that ``name`` means for a config, and why ``auto`` leaves it to torch, if so."""
    if name != "auto":
        return name, ""
    from pbg_tasks.native import library
    from pbg_tasks.native.coverage import left_to_torch

    if library() is None:
        return "torch", "this installation has no native library"
    left = "; ".join(left_to_torch(config))
    return ("torch", f"the native engine does not compute {left}") if left else ("native", "")


def make_engine(name: EngineName, config: ModelConfig, relation_count: int, *, workers: int = 1) -> Engine:
    """Make the engine of a training.

    Args:
        name: ``torch``, ``native`` or ``auto``.
        config: the model.
        relation_count: relations in the data, for a config that does not list them.
        workers: threads that train a bucket together.

    Raises:
        ConfigError: the engine that was asked for does not compute the config.
        ResourceError: it is not installed.
    """
    chosen, reason = engine_name(name, config)
    if reason:
        say(f"engine torch: {reason}")
    if chosen == "native":
        from pbg_tasks.train.engine_native import NativeEngine

        return NativeEngine(config, relation_count, workers=workers)
    from pbg_tasks.train.engine_torch import TorchEngine

    return TorchEngine(config, relation_count, workers=workers)
