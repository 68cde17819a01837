"""Partitions of the present iteration in the store.

Ranks exchange them there.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbg_tasks.formats.embeddings import embeddings_file_name, read_embeddings, write_embeddings
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.training.data.finite import check_partition
from pbg_tasks.training.data.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pbg_tasks.checkpoint import PartialObjects, StoredObject
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.training.data.partition_files import Stamp
    from pbg_tasks.training.data.partitions import PartitionKey


@dataclass(slots=True)
class PartitionStore:
    """Writer and reader of partitions as PBG's files.

    Attributes:
        config: stored in the files.
        partial: store of the files.
        scratch: local directory for them.
        rank: this rank, which is part of the names of its files.
        stamp: metadata of the present iteration's files.
    """

    config: ConfigSchema
    partial: PartialObjects
    scratch: Path
    rank: int
    stamp: Stamp

    def put(self, key: PartitionKey, table: Table, folder: str, *, lease: int = 0) -> StoredObject:
        """Store a partition.

        Args:
            key: the partition.
            table: its rows, which must not change meanwhile.
            folder: name that separates successive objects of the partition.
            lease: number of the lease that trained it last.

        Raises:
            TrainingDivergedError: a number is not finite.
            StorageError: the store failed.
            ResourceError: the local disk is full.
        """
        with self.written(key, table, folder) as path:
            return self.partial.put(path, folder, lease=lease)

    @contextmanager
    def written(self, key: PartitionKey, table: Table, folder: str) -> Iterator[Path]:
        """Write a partition to a local file that exists within the context.

        Raises:
            TrainingDivergedError: a number is not finite; nothing is written.
            ResourceError: the local disk is full.
        """
        check_partition(key, table)
        directory = self.scratch / folder
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / embeddings_file_name(*key, self.stamp.version)
        embeddings, sums = table.to_arrays()
        try:
            write_embeddings(
                path, embeddings, sums, lr=self.config.lr, iteration=self.stamp.iteration, config=self.config
            )
            yield path
        finally:
            path.unlink(missing_ok=True)

    def put_all(self, tables: Mapping[PartitionKey, Table], *, lease: int) -> dict[str, StoredObject]:
        """Store the partitions trained under a lease, side by side.

        Returns:
            Their objects by PBG's file name.
        """
        folder = f"{lease}.{self.rank}"
        stored = in_parallel(lambda key: self.put(key, tables[key], folder, lease=lease), tables, len(tables))
        return {embeddings_file_name(*key, self.stamp.version): each for key, each in zip(tables, stored, strict=True)}

    def get(self, stored: StoredObject) -> Table:
        """Read a partition that a rank stored.

        Raises:
            FormatError: its bytes are not those that were stored.
        """
        directory = self.scratch / "taken"
        path = self.partial.fetch(stored, directory)
        try:
            return Table.from_arrays(*read_embeddings(path))
        finally:
            path.unlink()
