"""Choice of the engine: the named one, or the fastest.

The fastest is chosen among those that cover the config. The choice works without torch, so that a plan can make it.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from pbg_tasks.config.support import of_cpus
from pbg_tasks.errors import ConfigError
from pbg_tasks.progress import say

if TYPE_CHECKING:
    import numpy as np

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.config.graph import DeviceName, EngineName
    from pbg_tasks.training.engine.base import Engine
    from pbg_tasks.training.engine.device import Host


def on_gpu(device: DeviceName, config: ModelConfig, engine: EngineName = "auto") -> bool:
    """Return whether a training runs on a GPU.

    ``num_gpus`` above 0 asks for one as ``cuda`` does. ``auto`` leaves to CPUs the keys that no GPU trains.
    """
    if config.num_gpus > 0 or device == "cuda":
        return True
    if device != "auto" or of_cpus(config, engine) or find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def engine_name(name: EngineName, config: ModelConfig, device: DeviceName = "cpu") -> tuple[str, str]:
    """Return the engine that ``name`` means for a config.

    The second string is the reason why ``auto`` leaves the config to torch; else it is empty.
    """
    if name != "auto":
        return name, ""
    if on_gpu(device, config):
        return "torch", "it computes on the GPU"
    from pbg_tasks.native import library
    from pbg_tasks.native.coverage import left_to_torch

    if library() is None:
        return "torch", "this installation has no native library"
    left = "; ".join(left_to_torch(config))
    return ("torch", f"the native engine does not compute {left}") if left else ("native", "")


def make_engine(
    name: EngineName,
    config: ModelConfig,
    relation_count: int,
    *,
    workers: int = 1,
    device: DeviceName = "cpu",
    loops: np.ndarray | None = None,
    place: Host | None = None,
) -> Engine:
    """Make the engine of a training.

    Args:
        name: ``torch``, ``native`` or ``auto``.
        config: the model; its ``num_gpus`` above 0 means ``device`` cuda.
        relation_count: number of relations in the data, for a config that does not list them.
        workers: threads that train a bucket together; a GPU has one.
        device: ``cpu``, ``cuda``, or ``auto``: a GPU where torch finds one.
        loops: int64, ids of the relations that have loops among all edges; None: unknown.
        place: the device itself; None: found by its name.

    Raises:
        ConfigError: the named engine does not compute the config, or not on this device.
        ResourceError: the engine is not installed, or there is no GPU.
    """
    chosen, reason = engine_name(name, config, device)
    if chosen == "native" and on_gpu(device, config, name):
        raise ConfigError(
            "engine native: left to engine torch: device cuda (or num_gpus: 1); set engine: auto or torch"
        )
    from pbg_tasks.training.engine.device import Accelerator, find_place

    place = place or find_place(device, config, name)
    if reason:
        say(f"engine torch: {reason}")
    if chosen == "native":
        from pbg_tasks.training.engine.native import NativeEngine

        return NativeEngine(config, relation_count, workers=workers, loops=loops)
    if isinstance(place, Accelerator):
        from pbg_tasks.training.engine.on_device import DeviceEngine

        return DeviceEngine(config, relation_count, place=place, loops=loops)
    from pbg_tasks.training.engine.on_torch import TorchEngine

    return TorchEngine(config, relation_count, workers=workers, loops=loops)
