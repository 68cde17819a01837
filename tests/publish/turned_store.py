"""A local store whose clock the test turns.

A test may also let something happen in the middle of an operation.
"""

from __future__ import annotations

import dataclasses
import shutil
import threading
from typing import TYPE_CHECKING

from pbg_tasks.storage import Blob, LocalStore, ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

Source = "bytes | Path"


class TurnedStore:
    """A ``LocalStore`` that dates its objects by ``now``."""

    def __init__(self, root: Path) -> None:
        self._store = LocalStore(root)
        self._written: dict[str, float] = {}
        self._event: Callable[[], None] | None = None
        self._left = 0
        self._lock = threading.Lock()
        self.now = 1_000_000.0

    def copy_to(self, root: Path) -> TurnedStore:
        """Return an independent store with the same objects and time."""
        shutil.copytree(self.url, root)
        copy = TurnedStore(root)
        copy.now, copy._written = self.now, dict(self._written)
        return copy

    def interrupt(self, after: int, event: Callable[[], None]) -> None:
        """Let an event happen once, after so many operations from now."""
        self._left, self._event = after, event

    def calm(self) -> bool:
        """Cancel the event; return whether it has happened."""
        happened, self._event = self._event is None, None
        return happened

    def _step(self) -> None:
        with self._lock:
            self._left -= 1
            event = self._event if self._left < 0 else None
            if event is not None:
                self._event = None
        if event is not None:
            event()

    def _dated(self, info: ObjectInfo) -> ObjectInfo:
        return dataclasses.replace(info, modified=self._written[info.key])

    @property
    def url(self) -> str:
        return self._store.url

    def head(self, key: str) -> ObjectInfo | None:
        self._step()
        info = self._store.head(key)
        return None if info is None else self._dated(info)

    def get(self, key: str) -> Blob:
        self._step()
        blob = self._store.get(key)
        return Blob(self._dated(blob.info), blob.data)

    def fetch(self, key: str, target: Path) -> ObjectInfo:
        self._step()
        return self._dated(self._store.fetch(key, target))

    def put_new(self, key: str, source: Source, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        self._step()
        return self._date(self._store.put_new(key, source, metadata=metadata))

    def swap(
        self, key: str, source: Source, *, expected: ObjectInfo | None, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        self._step()
        return self._date(self._store.swap(key, source, expected=expected, metadata=metadata))

    def put(self, key: str, source: Source, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        self._step()
        return self._date(self._store.put(key, source, metadata=metadata))

    def copy(self, source: str, target: str) -> ObjectInfo:
        self._step()
        return self._date(self._store.copy(source, target))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._step()
        yield from [self._dated(info) for info in self._store.list(prefix)]

    def delete(self, key: str) -> None:
        self._step()
        self._store.delete(key)

    def abort_uploads(self, prefix: str, *, before: float, dry_run: bool = False) -> int:
        return self._store.abort_uploads(prefix, before=before, dry_run=dry_run)

    def _date(self, info: ObjectInfo) -> ObjectInfo:
        self._written[info.key] = self.now
        return info
