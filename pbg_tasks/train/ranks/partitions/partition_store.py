"""Partitions of the iteration under way, in the store, where ranks put and find them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbg_tasks.formats.embeddings import embeddings_file_name, read_embeddings, write_embeddings
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.train.data.finite import check_partition
from pbg_tasks.train.data.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pbg_tasks.checkpoint import PartialObjects, StoredObject
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.train.data.partition_files import Stamp
    from pbg_tasks.train.data.partitions import PartitionKey


@dataclass(slots=True)
class PartitionStore:
    """Writes and reads partitions as PBG's files.

    Attributes:
        config: goes into the files.
        partial: where they are stored.
        scratch: local directory for them.
        rank: this one; its files have names that no other's have.
        stamp: what the files of the iteration under way say about themselves.
    """

    config: ConfigSchema
    partial: PartialObjects
    scratch: Path
    rank: int
    stamp: Stamp

    def put(self, key: PartitionKey, table: Table, folder: str, *, lease: int = 0) -> StoredObject:
        """Store a partition.

        Args:
            key: which.
            table: its rows; nobody changes them meanwhile.
            folder: that keeps apart what is stored of it one after another.
            lease: that trained it last.

        Raises:
            TrainingDivergedError: some of its numbers are not finite.
            StorageError: the store failed.
            ResourceError: the local disk is full.
        """
        with self.written(key, table, folder) as path:
            return self.partial.put(path, folder, lease=lease)

    @contextmanager
    def written(self, key: PartitionKey, table: Table, folder: str) -> Iterator[Path]:
        """Write a partition to a local file that is there for the length of the context.

        Raises:
            TrainingDivergedError: some of its numbers are not finite; nothing is written.
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
        """Store the partitions trained under a lease, side by side; returns them by PBG's file name."""
        folder = f"{lease}.{self.rank}"
        stored = in_parallel(lambda key: self.put(key, tables[key], folder, lease=lease), tables, max(len(tables), 1))
        return {embeddings_file_name(*key, self.stamp.version): each for key, each in zip(tables, stored, strict=True)}

    def get(self, stored: StoredObject) -> Table:
        """Bring a partition that some rank stored.

        Raises:
            FormatError: its bytes are not those that were stored.
        """
        directory = self.scratch / "taken"
        path = self.partial.fetch(stored, directory)
        try:
            return Table.from_arrays(*read_embeddings(path))
        finally:
            path.unlink()
