"""What training starts from: a committed version of this run, the release before, or chance."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import torch

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.embeddings import embeddings_file_name, read_embeddings
from pbg_tasks.formats.model import ModelState, model_file_name, read_model
from pbg_tasks.train.tables import Table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pbg_tasks.checkpoint import VerifiedFiles
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.train.partitions import PartitionKey


def seeded(*parts: object) -> torch.Generator:
    """Return a generator whose stream is a function of ``parts`` (independent streams for different parts)."""
    text = "/".join(str(part) for part in parts)
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)
    return torch.Generator().manual_seed(seed)


class StartingPoint:
    """Gives each partition and the model as they stand before the next iteration.

    Rows the files do not have yet (entities that are new tonight: ids are append-only) start at random.

    Args:
        config: dimensions and initial scale.
        counts: entities by (type, partition).
        files: verified checkpoint files to start from; None starts at random.
        grows: whether the files may hold fewer rows than there are entities (a warm start), or must match exactly.
        seed: of the run.
        scratch: local directory for downloads.
    """

    def __init__(
        self,
        config: ConfigSchema,
        counts: Mapping[PartitionKey, int],
        files: VerifiedFiles | None,
        *,
        grows: bool,
        seed: int,
        scratch: Path,
    ) -> None:
        self._config, self._counts, self._files = config, counts, files
        self._grows, self._seed, self._scratch = grows, seed, scratch

    def table(self, key: PartitionKey) -> Table:
        """Return one partition.

        Raises:
            FormatError: the file's rows or dimension do not fit the entities.
        """
        count, dimension = self._counts[key], self._config.entity_dimension(key.entity)
        fresh = Table.random(count, dimension, self._config.init_scale, seeded(self._seed, "init", *key))
        if self._files is None:
            return fresh
        name = embeddings_file_name(*key, self._files.version)
        path = self._files.fetch(name, self._scratch)
        embeddings, sums = read_embeddings(path, dimension=dimension)
        path.unlink()
        rows = len(embeddings)
        if rows > count or (rows < count and not self._grows):
            raise FormatError(f"{name}: holds {rows} rows for the {count} entities of {key.entity} {key.partition}")
        table_embeddings, table_sums = fresh.to_arrays()
        table_embeddings[:rows] = embeddings
        if sums is not None:
            table_sums[:rows] = sums
        return Table.from_arrays(table_embeddings, table_sums)

    def model(self) -> ModelState | None:
        """Return the relation parameters and their optimizer state; None starts with the operators' own."""
        if self._files is None:
            return None
        path = self._files.fetch(model_file_name(self._files.version), self._scratch)
        state = read_model(path)
        path.unlink()
        if not all(np.isfinite(value).all() for value in state.params.values()):
            raise FormatError(f"{path.name}: holds parameters that are not finite")
        return state
