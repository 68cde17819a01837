"""Refusal of keys with which a task could not do its work.

They are refused before a task spends anything, and never ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.config.schema import ModelConfig

_TYPES, _PARTITIONS = 256, 1 << 16
"""Most entity types, and partitions of one, for which the number of an end has room (``prepare.sql.edges``)."""


def check_nightly(config: ModelConfig, *, source: str) -> None:
    """Refuse a config that the nightly chain cannot feed with data.

    Raises:
        ConfigError: the message names every such key.
    """
    _refuse([*_not_in_snapshots(config), *_beyond_numbers(config)], source)


def check_imported(config: ModelConfig, *, source: str) -> None:
    """Refuse a config that an import of edges cannot fulfil.

    Raises:
        ConfigError: the message names every such key.
    """
    _refuse(list(_beyond_numbers(config)), source)


def check_alone(config: ModelConfig, *, who: str) -> None:
    """Refuse a config that only a process of its own can train.

    Raises:
        ConfigError: the message names the key.
    """
    if config.embedding_precision == "bf16":
        raise ConfigError(
            f"{who}: embedding_precision: bf16 is for a process that trains alone; train with one rank, or set f32"
        )


def of_cpus(config: ModelConfig, engine: str) -> list[str]:
    """List the keys with which a config is trained on CPUs only."""
    keys = {
        "train.engine: native": engine == "native",
        "model.gradient: sampled": config.gradient == "sampled",
        "model.mask_known_negatives: true": config.mask_known_negatives,
        "model.embedding_precision: bf16": config.embedding_precision == "bf16",
    }
    return [key for key, there in keys.items() if there]


def check_gpu(config: ModelConfig, *, engine: str, source: str) -> None:
    """Refuse a config that is trained on CPUs only.

    Raises:
        ConfigError: the message names every such key.
    """
    if found := of_cpus(config, engine):
        raise ConfigError(
            f"{source}: {'; '.join(found)}: for the CPU, yet train.device is cuda (or model.num_gpus > 0); change one"
        )


def check_gpu_ranks(config: ModelConfig, ranks: int) -> None:
    """Refuse entity types that ranks with GPUs cannot share.

    A rank's copy of such a table on its GPU would overwrite what others change in it during a bucket.

    Raises:
        ConfigError: the message names every such type.
    """
    whole = sorted(name for name, entity in config.entities.items() if entity.num_partitions == 1)
    if ranks > 1 and whole:
        raise ConfigError(
            f"{ranks} ranks with GPUs cannot share entity types of one partition ({', '.join(whole)}): raise their "
            "num_partitions, set device: cpu (and num_gpus: 0), or train with one rank"
        )


def _refuse(found: Iterator[str] | list[str], source: str) -> None:
    listed = list(found)
    if listed:
        raise ConfigError(f"{source}: not supported by this version: " + "; ".join(listed))


def _beyond_numbers(config: ModelConfig) -> Iterator[str]:
    if len(config.entities) > _TYPES:
        yield f"entities: {len(config.entities)} types (at most {_TYPES}; let rare ones share one)"
    for name, entity in config.entities.items():
        if entity.num_partitions > _PARTITIONS:
            yield f"entities.{name}.num_partitions: {entity.num_partitions} (at most {_PARTITIONS})"


def _not_in_snapshots(config: ModelConfig) -> Iterator[str]:
    for name, entity in config.entities.items():
        if entity.featurized:
            yield f"entities.{name}.featurized: true (a snapshot's columns hold names; `pbg import` reads features)"
