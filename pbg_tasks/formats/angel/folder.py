"""Folders of Angel's files, local or in a store.

From a store, files are fetched one by one.
"""

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
    """Folder of files."""

    @property
    def where(self) -> str:
        """Path or URL of the folder, for errors."""
        ...

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file by its name.

        Hidden files (``.0.crc``) are left out.
        """
        ...

    def local(self, name: str) -> Path:
        """Return the local path of a file.

        It is valid until the path of another file is requested.
        """
        ...


class LocalFolder:
    """Folder that is a local directory.

    Args:
        path: of the directory; one that does not exist has no files.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def where(self) -> str:
        """Path of the directory."""
        return str(self._path)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file by its name."""
        if not self._path.is_dir():
            return {}
        with disk_errors(self._path), os.scandir(self._path) as entries:
            return {entry.name: entry.stat().st_size for entry in entries if _shown(entry.name) and entry.is_file()}

    def local(self, name: str) -> Path:
        """Return the path of a file."""
        return self._path / name


class StoredFolder:
    """Folder of objects below a prefix of a store.

    Args:
        store: that has the objects.
        prefix: ``/``-separated, without a slash at the end; empty for the store's root.
        scratch: a directory of its own, for the file that is being read.
    """

    def __init__(self, store: Store, prefix: str, scratch: Path) -> None:
        self._store, self._prefix = store, f"{prefix}/" if prefix else ""
        self._scratch = scratch
        self._fetched: Path | None = None

    @property
    def where(self) -> str:
        """URL of the folder."""
        return f"{self._store.url}/{self._prefix}".rstrip("/")

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each object by its name."""
        found = ((info.key.removeprefix(self._prefix), info.size) for info in self._store.list(self._prefix))
        return {name: size for name, size in found if "/" not in name and _shown(name)}

    def local(self, name: str) -> Path:
        """Fetch an object and remove the one fetched before."""
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
    """Open a folder of a store.

    Files of a local store are read in place.

    Args:
        store: that has the folder.
        prefix: of the folder's keys, without a slash at the end.
    """
    if isinstance(store, LocalStore):
        yield LocalFolder(Path(store.url) / prefix)
        return
    with Scratch() as scratch:
        yield StoredFolder(store, prefix, scratch.path)


def _shown(name: str) -> bool:
    return not name.startswith(".")
