"""A version of a model in local files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.formats.entity_sets import EntitySet


@dataclass(frozen=True, slots=True)
class LocalModel:
    """Local files of a model that is ranked or compared.

    Attributes:
        config: of the model.
        params: shared parameters by PBG's path.
        paths: embeddings file of each (type, partition).
        counts: entities of each partition, by type.
        relations: names of the relations, by id.
        loops: int64, ids of the relations that had loops in training; None: unknown.
        hidden: entities that are never candidates; None: there are none.
    """

    config: ModelConfig
    params: Mapping[str, np.ndarray]
    paths: Mapping[tuple[str, int], Path]
    counts: Mapping[str, list[int]]
    relations: list[str]
    loops: np.ndarray | None = None
    hidden: EntitySet | None = None
