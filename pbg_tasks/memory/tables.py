"""What embeddings take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.memory.steps import FLOAT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.config import ModelConfig


def table_bytes(config: ModelConfig, entity: str, count: int) -> int:
    """Return what a partition of ``count`` entities takes: embeddings and their sums, float32."""
    return count * (config.entity_dimension(entity) + 1) * FLOAT


def largest_bytes(config: ModelConfig, counts: Mapping[str, Sequence[int]], held: Mapping[str, int]) -> int:
    """Return what the largest partitions take.

    Args:
        config: the model.
        counts: entities (or features) of each partition, by type.
        held: how many partitions of each type there are; beyond all of them, the largest once more.
    """
    found = 0
    for entity, number in held.items():
        ordered = sorted(counts[entity], reverse=True)
        more = max(number - len(ordered), 0)
        found += sum(table_bytes(config, entity, count) for count in [*ordered[:number], *ordered[:1] * more])
    return found
