"""Files of partitions that are not in memory.

They are PBG's own files, on local scratch; the next commit uploads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pbg_tasks.formats.embeddings import embeddings_file_name, write_embeddings
from pbg_tasks.training.data.finite import check_partition
from pbg_tasks.training.data.tables import Table

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.formats.embeddings import IterationInfo
    from pbg_tasks.training.data.partitions import PartitionKey


class Stamp(NamedTuple):
    """Metadata of a file: its name's version and the present iteration."""

    version: int
    iteration: IterationInfo


class PartitionFiles:
    """The newest file of each partition, for one thread at a time.

    Args:
        config: stored in the files.
        directory: of the files.
    """

    def __init__(self, config: ConfigSchema, directory: Path) -> None:
        self._config, self._directory = config, directory
        self._paths: dict[PartitionKey, Path] = {}

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._paths

    def path(self, key: PartitionKey) -> Path:
        """Return the file of a partition that was written."""
        return self._paths[key]

    def read(self, key: PartitionKey) -> Table:
        """Read the newest file of a partition."""
        return Table.read(self._paths[key], self._config)

    def write(self, key: PartitionKey, table: Table, stamp: Stamp) -> Path:
        """Write a partition and return its file.

        Raises:
            TrainingDivergedError: a number is not finite; the file before stays.
            ResourceError: the disk is full.
        """
        check_partition(key, table)
        before = self._paths.pop(key, None)
        if before is not None:
            before.unlink()  # first, as the disk may lack room for both, and file systems flush a rename's target
        path = self._directory / embeddings_file_name(*key, stamp.version)
        embeddings, sums = table.to_arrays()
        write_embeddings(path, embeddings, sums, lr=self._config.lr, iteration=stamp.iteration, config=self._config)
        self._paths[key] = path
        return path
