"""Start of a training.

It is a committed version of this run, the release before, given vectors, or random.
"""

from __future__ import annotations

import hashlib
import zlib
from functools import partial
from typing import TYPE_CHECKING

import torch

from pbg_tasks.training.data.stored import StoredVectors
from pbg_tasks.training.data.tables import Table, is_narrow
from pbg_tasks.training.engine.rounding import Rounding

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointFiles
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.config.graph import Shrink
    from pbg_tasks.formats.metadata import IterationInfo
    from pbg_tasks.formats.model import ModelState
    from pbg_tasks.training.data.initial import CheckpointStart
    from pbg_tasks.training.data.named_arrays import NamedArrays
    from pbg_tasks.training.data.partitions import PartitionKey

_SHRUNK_VALUES = 1 << 22  # of a table, at a time


def seeded(*parts: object) -> torch.Generator:
    """Return a generator whose stream is a function of ``parts``.

    Different parts give independent streams.
    """
    text = "/".join(str(part) for part in parts)
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)
    return torch.Generator().manual_seed(seed)


class StartingPoint:
    """Partitions and model before the next iteration.

    Each starts at random. The checkpoint's values overwrite that start, or else those of ``init_path``. Where the
    checkpoint has every row nothing is drawn, because that would take minutes for a large partition.

    Args:
        config: dimensions and initial scale.
        counts: number of entities by (type, partition).
        files: checkpoint files to continue from; None when there are none.
        grows: whether the files may contain fewer rows than there are entities (a warm start), or must match exactly.
        seed: seed of the run.
        scratch: local directory for downloads.
        initial: the start of ``init_path``.
        newcomers: the rows of each partition that come after those of ``files``; missing ones start at random.
        given: vectors of rows of types that are not trained, which come after those of ``files``, by name.
        shrink: factors of the values of ``files`` and ``newcomers``; None: no change.
        trains: whether a training goes on from ``files``; it is warned of one without optimizer state.
    """

    def __init__(
        self,
        config: ConfigSchema,
        counts: Mapping[PartitionKey, int],
        files: CheckpointFiles | None,
        *,
        grows: bool,
        seed: int,
        scratch: Path,
        initial: CheckpointStart | NamedArrays | None = None,
        newcomers: CheckpointFiles | None = None,
        given: NamedArrays | None = None,
        shrink: Shrink | None = None,
        trains: bool = True,
    ) -> None:
        self._config, self._counts = config, counts
        self._seed = seed
        self._stored: StoredVectors | None = None
        if files is not None and files.names:
            self._stored = StoredVectors(files, scratch, grows=grows, trains=trains)
        self._initial, self._given = initial, given
        self._shrink = shrink
        self._newcomers = None if newcomers is None else StoredVectors(newcomers, scratch, grows=False)

    @property
    def iteration(self) -> IterationInfo | None:
        """Iteration of the stored version, once the model was read, or None."""
        return None if self._stored is None else self._stored.iteration

    def table(self, key: PartitionKey) -> Table:
        """Return one partition.

        Raises:
            FormatError: a file's rows or dimension do not fit the entities.
        """
        dimension = self._config.entity_dimension(key.entity)
        table = Table.blank(self._counts[key], dimension, narrow=is_narrow(self._config))
        # A row's place in the stream follows from those before it, so all are drawn if any is.
        draw = partial(table.draw, self._config.init_scale, seeded(self._seed, "init", *key))
        if self._stored is None or not self._stored.holds(key):
            draw()
            if self._initial is not None:
                self._initial.fill(key, table)
            return table
        if self._newcomers is None or not self._newcomers.holds(key):
            known = self._stored.fill(key, table, rest=draw)
            self._shrunk(key, table, rows=known, known=known)
        else:
            known = self._stored.fill(key, table)
            self._newcomers.fill(key, Table(table.embeddings[known:], table.row_sums[known:]))
            # Newcomers were placed among the known rows before these are shrunk; their sums are their own.
            self._shrunk(key, table, rows=len(table), known=known)
        if self._given is not None and known < len(table):
            self._given.fill(key, table, known=known)
        return table

    def _shrunk(self, key: PartitionKey, table: Table, *, rows: int, known: int) -> None:
        if self._shrink is None or not self._config.entities[key.entity].trainable:
            return
        table.row_sums[:known].mul_(self._shrink.sums)
        named = zlib.crc32(f"shrink/{self._seed}/{key.entity}/{key.partition}".encode())
        step = max(1, _SHRUNK_VALUES // table.embeddings.shape[1])
        for start in range(0, rows, step):
            part = table.embeddings[start : min(start + step, rows)]
            moved = part.float().mul_(self._shrink.vectors)  # float32 rows change in place
            if table.narrow:
                # As in an anchor: the same bits each night would round each coordinate one way.
                bits = Rounding(zlib.crc32(moved[0].numpy().tobytes(), named), 0)
                part.copy_(bits.rounded(moved, torch.arange(start, start + len(part))))

    def model(self, current: ModelState) -> ModelState | None:
        """Return the shared parameters and their optimizer state.

        None stands for the operators' own start.

        Args:
            current: the starting parameters, which stay where ``init_path`` has none.

        Raises:
            FormatError: the file is damaged, or a parameter has another shape.
        """
        stored = None if self._stored is None else self._stored.model()
        if stored is None and self._initial is not None:
            return self._initial.model(current)
        return stored
