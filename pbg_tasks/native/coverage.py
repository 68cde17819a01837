"""Coverage of a config by the native library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.errors import ConfigError
from pbg_tasks.native import abi
from pbg_tasks.native.library import instruction_set

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.config.graph import EngineName

BFLOAT16 = ("avx512_bf16", "amx")
"""Instruction sets that multiply bfloat16 numbers."""

LEFT_TO_TORCH = (
    "entity types with featurized: true",
    "operators, comparators, losses and regularizers of other packages",
    "mask_known_negatives: true",
    "precision: bf16, on a CPU without AVX512_BF16",
    "device: cuda (or num_gpus: 1)",
)
"""Everything that ``left_to_torch`` can find, and the device."""


def check_native(engine: EngineName, config: ModelConfig, *, source: str) -> None:
    """Refuse ``engine: native`` for a config that it computes on no CPU.

    Raises:
        ConfigError: the message names every such key.
    """
    if engine == "native" and (left := "; ".join(left_to_torch(config, here=False))):
        raise ConfigError(f"{source}: train.engine: native leaves to engine torch: {left}; set engine: auto or torch")


def left_to_torch(config: ModelConfig, *, here: bool = True) -> Iterator[str]:
    """Yield the keys of a config that it does not compute.

    Each is returned with its value.

    Args:
        config: the model.
        here: on this CPU; else on any.
    """
    for name, entity in config.entities.items():
        if entity.featurized:
            yield f"entities.{name}.featurized: true"
    for relation in config.relations:
        if relation.operator not in abi.OPERATORS:
            yield f"relations.{relation.name}.operator: {relation.operator}"
    for key, known in (
        ("comparator", abi.COMPARATORS),
        ("loss_fn", abi.LOSSES),
        ("regularizer", abi.REGULARIZERS),
    ):
        if getattr(config, key) not in known:
            yield f"{key}: {getattr(config, key)}"
    if here and config.product_precision == "bf16" and instruction_set() not in BFLOAT16:
        yield "precision: bf16 (this CPU has no AVX512_BF16)"
    if config.mask_known_negatives:
        yield "mask_known_negatives: true"
