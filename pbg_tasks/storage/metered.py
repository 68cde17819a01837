"""Store that counts the bytes it reads and writes."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from pbg_tasks.storage.base import RangedStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pbg_tasks.storage.base import Blob, ObjectInfo, Store


class MeteredStore:
    """Store that passes all calls on to another and counts bytes.

    A copy within the store is not counted, because its bytes do not pass through this process.

    Args:
        store: the store that does the work.

    Attributes:
        read: bytes that were got or fetched.
        written: bytes that were put.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self.read = self.written = 0
        if isinstance(store, RangedStore):
            self.get_range = partial(self._get_range, store)

    @property
    def url(self) -> str:
        """As ``Store``."""
        return self._store.url

    def head(self, key: str) -> ObjectInfo | None:
        """As ``Store``."""
        return self._store.head(key)

    def get(self, key: str) -> Blob:
        """As ``Store``."""
        blob = self._store.get(key)
        self.count(read=len(blob.data))
        return blob

    def fetch(self, key: str, target: Path) -> ObjectInfo:
        """As ``Store``."""
        info = self._store.fetch(key, target)
        self.count(read=info.size)
        return info

    def _get_range(self, store: RangedStore, info: ObjectInfo, start: int, stop: int) -> bytes:
        data = store.get_range(info, start, stop)
        self.count(read=len(data))
        return data

    def put_new(self, key: str, source: bytes | Path, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        """As ``Store``."""
        return self._written(self._store.put_new(key, source, metadata=metadata))

    def swap(
        self, key: str, source: bytes | Path, *, expected: ObjectInfo | None, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        """As ``Store``."""
        return self._written(self._store.swap(key, source, expected=expected, metadata=metadata))

    def put(self, key: str, source: bytes | Path, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        """As ``Store``."""
        return self._written(self._store.put(key, source, metadata=metadata))

    def copy(self, source: str, target: str) -> ObjectInfo:
        """As ``Store``."""
        return self._store.copy(source, target)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """As ``Store``."""
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        """As ``Store``."""
        self._store.delete(key)

    def abort_uploads(self, prefix: str, *, before: float, dry_run: bool = False) -> int:
        """As ``Store``."""
        return self._store.abort_uploads(prefix, before=before, dry_run=dry_run)

    def _written(self, info: ObjectInfo) -> ObjectInfo:
        self.count(written=info.size)
        return info

    def count(self, *, read: int = 0, written: int = 0) -> None:
        """Count bytes, also those that did not pass through this store."""
        with self._lock:
            self.read += read
            self.written += written


def count_read(store: Store, size: int) -> None:
    """Count bytes that were read without a store, where it counts."""
    if isinstance(store, MeteredStore):
        store.count(read=size)
