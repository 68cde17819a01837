"""Where a folder of Angel's lies: a directory, or below a prefix of a store, whose files are fetched one by one."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pbg_tasks.storage.files import disk_errors
from pbg_tasks.storage.local import LocalStore
from pbg_tasks.storage.staging import Scratch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.storage.base import Store


class Folder(Protocol):
    """Files side by side."""

    @property
    def where(self) -> str:
        """Path or URL, for errors."""
        ...

    def sizes(self) -> dict[str, int]:
        """Return each file's bytes by its name, the hidden ones (``.0.crc``) left out."""
        ...

    def local(self, name: str) -> Path:
        """Return where a file is on the local disk, until another one is asked for."""
        ...


class LocalFolder:
    """A directory.

    Args:
        path: of the directory; one that is not there has no files.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def where(self) -> str:
        """The path."""
        return str(self._path)

    def sizes(self) -> dict[str, int]:
        """Return each file's bytes by its name."""
        if not self._path.is_dir():
            return {}
        with disk_errors(self._path), os.scandir(self._path) as entries:
            return {entry.name: entry.stat().st_size for entry in entries if _shown(entry.name) and entry.is_file()}

    def local(self, name: str) -> Path:
        """Return where a file is."""
        return self._path / name


class StoredFolder:
    """Objects below a prefix of a store.

    Args:
        store: which.
        prefix: ``/``-separated, without a slash at the end; empty for the store's root.
        scratch: a directory of its own, for the file that is being read.
    """

    def __init__(self, store: Store, prefix: str, scratch: Path) -> None:
        self._store, self._prefix, self._scratch = store, f"{prefix}/" if prefix else "", scratch
        self._fetched: Path | None = None

    @property
    def where(self) -> str:
        """The URL."""
        return f"{self._store.url}/{self._prefix}".rstrip("/")

    def sizes(self) -> dict[str, int]:
        """Return each object's bytes by its name."""
        found = ((info.key.removeprefix(self._prefix), info.size) for info in self._store.list(self._prefix))
        return {name: size for name, size in found if "/" not in name and _shown(name)}

    def local(self, name: str) -> Path:
        """Fetch an object and drop the one before."""
        target = self._scratch / name
        if target != self._fetched:
            if self._fetched is not None:
                self._fetched.unlink()
            self._fetched = None
            self._store.fetch(f"{self._prefix}{name}", target)
            self._fetched = target
        return target


@contextmanager
def folder_of(store: Store, prefix: str = "") -> Iterator[Folder]:
    """Open a folder of a store; files of a local store are read where they are.

    Args:
        store: which.
        prefix: of the folder's keys, without a slash at the end.
    """
    if isinstance(store, LocalStore):
        yield LocalFolder(Path(store.url) / prefix)
        return
    with Scratch() as scratch:
        yield StoredFolder(store, prefix, scratch.path)


def _shown(name: str) -> bool:
    return not name.startswith(".")
