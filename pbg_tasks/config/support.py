"""What of PBG's config this version does not train yet: refused before anything is spent, never ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.config.schema import ModelConfig


def check_supported(config: ModelConfig, *, source: str) -> None:
    """Refuse a config that asks for more than there is.

    Raises:
        ConfigError: naming every such key.
    """
    found = list(_unsupported(config))
    if found:
        raise ConfigError(f"{source}: not supported by this version: " + "; ".join(found))


def _unsupported(config: ModelConfig) -> Iterator[str]:
    for name, entity in config.entities.items():
        if entity.featurized:
            yield f"entities.{name}.featurized: true"
    if config.init_path is not None:
        yield "init_path (a night starts from the channel's release by itself)"
    if config.num_machines > 1:
        yield f"num_machines: {config.num_machines}"
    if config.num_gpus > 0:
        yield f"num_gpus: {config.num_gpus}"
    if config.regularization_coef > 0:
        for relation in config.relations:
            if relation.operator in ("linear", "affine"):
                yield f"regularizer N3 with operator {relation.operator} of relation {relation.name!r}"
    if config.workers is not None and config.workers > 1:
        yield f"workers: {config.workers} (one process trains, with resources.threads threads)"


def unused_keys(config: ModelConfig) -> Iterator[str]:
    """Yield a sentence for each key that is set and has no effect in the nightly chain."""
    if config.eval_fraction > 0 and "eval_fraction" in config.model_fields_set:
        yield "model.eval_fraction has no effect here: the spec's split holds edges out, and `eval` ranks them"
