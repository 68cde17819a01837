"""Vectors of a checkpoint directory, fetched one file at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import check_rows
from pbg_tasks.errors import FormatError
from pbg_tasks.formats.embeddings import embeddings_file_name, embeddings_shape
from pbg_tasks.formats.metadata import read_iteration
from pbg_tasks.formats.model import model_file_name, read_model
from pbg_tasks.progress import say
from pbg_tasks.storage.staging import named

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointFiles
    from pbg_tasks.formats.metadata import IterationInfo
    from pbg_tasks.formats.model import ModelState
    from pbg_tasks.training.data.partitions import PartitionKey
    from pbg_tasks.training.data.tables import Table


class StoredVectors:
    """One version of a checkpoint directory.

    Args:
        files: of the version.
        scratch: local directory for downloads.
        grows: whether a file may contain fewer rows than there are entities (ids are append-only), or must match
            exactly.
        advice: repair of another number of rows, for the error.
        trains: whether a training goes on from the files; it is warned of one without optimizer state.

    Attributes:
        iteration: the iteration of the files, once the model was read; None where they do not contain it.
    """

    def __init__(
        self, files: CheckpointFiles, scratch: Path, *, grows: bool, advice: str = "", trains: bool = True
    ) -> None:
        self.files = files
        self._scratch, self._grows = scratch, grows
        self._advice, self._warns = advice, trains
        self.iteration: IterationInfo | None = None

    def holds(self, key: PartitionKey) -> bool:
        """Return whether a partition has a file.

        Only a version 0, which is a start that was given, may lack one.
        """
        return self.files.version > 0 or embeddings_file_name(*key, self.files.version) in self.files.names

    def fill(self, key: PartitionKey, table: Table, *, rest: Callable[[], None] = lambda: None) -> int:
        """Overwrite the first rows of ``table`` with stored rows and optimizer state.

        Args:
            key: the partition.
            table: all its rows.
            rest: called first where the file has fewer rows than ``table``; may fill all of it.

        Returns:
            Number of stored rows.

        Raises:
            FormatError: the file is missing or damaged, or its rows or dimension do not fit.
        """
        name = embeddings_file_name(*key, self.files.version)
        path = self.files.fetch(name, self._scratch)
        try:
            with named(path, f"{self.files.url}/{name}"):
                shape = embeddings_shape(path)
                self._check(str(path), shape, key, table)
                if shape[0] < len(table):
                    rest()
                stored, has_sums = table.fill(path)
        finally:
            path.unlink()
        if not has_sums:
            self._warn(name)
        return stored

    def _warn(self, name: str) -> None:
        """Warn, once, of a file without optimizer state."""
        if self._warns:
            say(
                f"warning: {self.files.url}/{name}: holds no optimizer state: its sums start at 0, so the first steps "
                "are as large as those of a new training"
            )
        self._warns = False

    def _check(self, source: str, shape: tuple[int, int], key: PartitionKey, table: Table) -> None:
        (rows, dimension), wanted = shape, table.embeddings.shape[1]
        if dimension != wanted:
            raise FormatError(f"{source}: has dimension {dimension}, the config gives {key.entity} dimension {wanted}")
        if not self._grows or rows > len(table):
            check_rows(source, rows, entity=key.entity, partition=key.partition, count=len(table), advice=self._advice)

    def model(self) -> ModelState | None:
        """Return relation parameters, global embeddings and their optimizer state.

        None is returned where there is no file.

        Raises:
            FormatError: the file is damaged.
        """
        name = model_file_name(self.files.version)
        if not self.files.version and name not in self.files.names:
            return None
        path = self.files.fetch(name, self._scratch)
        try:
            with named(path, f"{self.files.url}/{name}"):
                self.iteration = read_iteration(path)
                state = read_model(path)
        finally:
            path.unlink()
        if state.params and not state.sums:
            self._warn(name)
        return state
