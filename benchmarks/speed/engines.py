"""Our engines, as the results tell them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pbg_tasks.config import ConfigSchema
from pbg_tasks.native import library
from pbg_tasks.native.coverage import left_to_torch
from pbg_tasks.progress import say
from pbg_tasks.train.engines import make_engine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pbg_tasks.config.graph import EngineName
    from pbg_tasks.train.engine import Engine


class Variant(NamedTuple):
    """An engine, and what it changes of a config."""

    engine: EngineName
    changes: Mapping[str, Any]


VARIANTS = {
    "torch": Variant("torch", {}),
    "native": Variant("native", {}),
    "native with N3": Variant("native", {"regularization_coef": 1e-3}),
    "native bf16": Variant("native", {"precision": "bf16"}),
}


def engine_of(variant: str, document: Mapping[str, Any], relation_count: int, workers: int) -> Engine:
    """Return the engine of a variant for a config."""
    return make_engine(VARIANTS[variant].engine, _config(variant, document), relation_count, workers=workers)


def available(document: Mapping[str, Any]) -> list[str]:
    """Return the variants that train a config here, and say which do not.

    Raises:
        ResourceError: the native library was built from other sources than these.
    """
    found = []
    for name, variant in VARIANTS.items():
        left = [] if variant.engine == "torch" else _missing(_config(name, document))
        if left:
            say(f"{name}: not measured, the native engine lacks {', '.join(left)}")
        else:
            found.append(name)
    return found


def _missing(config: ConfigSchema) -> list[str]:
    return ["its library"] if library() is None else list(left_to_torch(config))


def _config(variant: str, document: Mapping[str, Any]) -> ConfigSchema:
    return ConfigSchema(**{**document, **VARIANTS[variant].changes})
