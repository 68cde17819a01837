"""Upload of the next version's files while training goes on.

The commit waits for all of them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint.live import FILE_NAME as LIVE
from pbg_tasks.errors import ResourceError, StorageError
from pbg_tasks.storage import FinalFile
from pbg_tasks.storage.names import join
from pbg_tasks.training.data.background import Background

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointWriter, Manifest, ObjectRecord

_PATIENCE_SECONDS = 5.0  # an upload can take minutes, and one that is never committed does not count


class Uploads:
    """Objects of the next version; none counts before the writer commits it.

    Args:
        writer: stores them.

    Attributes:
        io: the thread that uploads.
    """

    def __init__(self, writer: CheckpointWriter) -> None:
        self.io = Background("uploads", patience=_PATIENCE_SECONDS)
        self._writer = writer
        self._records: dict[str, Future[ObjectRecord]] = {}
        self._lock = threading.Lock()
        self._mirror: bytes | None = None  # the newest one that waits for its turn

    def add(self, path: Path) -> None:
        """Queue the upload of a file that is complete.

        The file keeps its name until ``collect`` has returned.
        """
        self._records[path.name] = self.io.submit(self._writer.put, path.name, FinalFile(path))

    def mirror(self, data: bytes) -> None:
        """Store the progress of the training, behind the files that wait.

        Where several wait, only the newest is stored.
        """
        with self._lock:
            waits, self._mirror = self._mirror is not None, data
        if not waits:
            self.io.submit(self._put_mirror)

    def _put_mirror(self) -> None:
        with self._lock:
            data, self._mirror = self._mirror, None
        if data is None:
            return
        try:
            self._writer.store.put(join(self._writer.prefix, LIVE), data)
        except (StorageError, ResourceError):
            return  # it is only for watching, and the next one is newer; a store that fails also fails the files

    def collect(self) -> dict[str, ObjectRecord]:
        """Wait for all files and return their records by name.

        Raises:
            ConflictError: another writer has claimed the run.
            StorageError: the store failed.
        """
        records = {name: self.io.wait(record) for name, record in self._records.items()}
        self._records.clear()
        return records

    def abandon(self) -> None:
        """Cancel the uploads of the version that have not begun."""
        for record in self._records.values():
            record.cancel()

    def drop(self, manifest: Manifest) -> None:
        """Delete the data of a version that is no longer the newest.

        Files that are added later are stored after that.
        """
        self.io.submit(self._writer.drop, manifest)
