"""Our engines, by their names in the results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pbg_tasks.config import ConfigSchema
from pbg_tasks.native import library
from pbg_tasks.native.coverage import left_to_torch
from pbg_tasks.progress import say
from pbg_tasks.training.engine.choice import make_engine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pbg_tasks.config.graph import DeviceName, EngineName
    from pbg_tasks.training.engine.base import Engine


class Variant(NamedTuple):
    """An engine, its changes of a config, and its device."""

    engine: EngineName
    changes: Mapping[str, Any]
    device: DeviceName = "cpu"


VARIANTS = {
    "torch": Variant("torch", {}),
    "native": Variant("native", {}),
    "native with N3": Variant("native", {"regularization_coef": 1e-3}),
    "native bf16": Variant("native", {"precision": "bf16"}),
}
GPU = {f"GPU {precision}": Variant("torch", {"precision": precision}, "cuda") for precision in ("f32", "tf32", "bf16")}


def engine_of(variant: str, document: Mapping[str, Any], relation_count: int, workers: int) -> Engine:
    """Return the engine of a variant for a config."""
    chosen = (VARIANTS | GPU)[variant]
    config = ConfigSchema(**{**document, **chosen.changes})
    return make_engine(chosen.engine, config, relation_count, workers=workers, device=chosen.device)


def available(document: Mapping[str, Any]) -> list[str]:
    """Return the variants that train a config here.

    The others are reported.

    Raises:
        ResourceError: the native library was built from other sources than these.
    """
    found = []
    for name, variant in VARIANTS.items():
        config = ConfigSchema(**{**document, **variant.changes})
        left = [] if variant.engine == "torch" else _missing(config)
        if left:
            say(f"{name}: not measured, the native engine lacks {', '.join(left)}")
        else:
            found.append(name)
    return found


def _missing(config: ConfigSchema) -> list[str]:
    return ["its library"] if library() is None else list(left_to_torch(config))
