"""Partitions that are not in memory: PBG's own files, on local scratch, which the next commit uploads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pbg_tasks.formats.embeddings import embeddings_file_name, read_embeddings, write_embeddings
from pbg_tasks.train.data.finite import check_partition
from pbg_tasks.train.data.tables import Table

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.formats.embeddings import IterationInfo
    from pbg_tasks.train.data.partitions import PartitionKey


class Stamp(NamedTuple):
    """What a file says about itself: the version its name carries, and the iteration under way."""

    version: int
    iteration: IterationInfo


class PartitionFiles:
    """One file a partition: the newest. To be used by one thread at a time.

    Args:
        config: goes into the files.
        directory: where they lie.
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
        """Return a partition as it was written last."""
        return Table.from_arrays(*read_embeddings(self._paths[key]))

    def write(self, key: PartitionKey, table: Table, stamp: Stamp) -> Path:
        """Write a partition and return its file.

        Raises:
            TrainingDivergedError: some of its numbers are not finite; the file before stays.
            ResourceError: the disk is full.
        """
        check_partition(key, table)
        before = self._paths.pop(key, None)
        if before is not None:
            before.unlink()  # first: there is no need for room for both, and file systems flush what a rename replaces
        path = self._directory / embeddings_file_name(*key, stamp.version)
        embeddings, sums = table.to_arrays()
        write_embeddings(path, embeddings, sums, lr=self._config.lr, iteration=stamp.iteration, config=self._config)
        self._paths[key] = path
        return path
