"""Memory of embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.memory.steps import FLOAT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.config import ModelConfig


def table_bytes(config: ModelConfig, entity: str, count: int) -> int:
    """Return the bytes of a partition: embeddings, and sums, which are float32."""
    number = FLOAT // 2 if config.embedding_precision == "bf16" else FLOAT
    return count * (config.entity_dimension(entity) * number + FLOAT)


def largest_bytes(config: ModelConfig, counts: Mapping[str, Sequence[int]], held: Mapping[str, int]) -> int:
    """Return the bytes of the largest partitions.

    Args:
        config: the model.
        counts: entities (or features) of each partition, by type.
        held: number of partitions of each type in memory; each one beyond all of them counts as the largest.
    """
    found = 0
    for entity, number in held.items():
        ordered = sorted(counts[entity], reverse=True)
        more = max(number - len(ordered), 0)
        found += sum(table_bytes(config, entity, count) for count in [*ordered[:number], *ordered[:1] * more])
    return found
