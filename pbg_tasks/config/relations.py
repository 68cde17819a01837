"""Labels of a model's relations, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pbg_tasks.config.schema import ModelConfig


def relation_labels(model: ModelConfig, names: Sequence[str]) -> list[str]:
    """Return a label for each relation id that no other relation has.

    Where names repeat, the entity types distinguish them.
    """
    if model.relations_from_data:
        return list(names)
    return [
        f"{name} ({relation.lhs}, {relation.rhs})" if names.count(name) > 1 else name
        for name, relation in zip(names, model.relations, strict=True)
    ]
