"""Inbox of an import: one file or a folder.

It is local or in a store. Files are verified where a manifest has their hashes.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint.manifest import find_document
from pbg_tasks.errors import ConfigError, FormatError, InputError, NotFoundError
from pbg_tasks.formats.names import UNFINISHED
from pbg_tasks.publish.exchange.manifest import MANIFEST, MARK, PARTS, STAGED, ExchangeManifest
from pbg_tasks.storage import LocalStore, open_file, open_store
from pbg_tasks.storage.names import is_hidden
from pbg_tasks.storage.staging import fetch_verified, sha256_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.storage import Store


class Inbox:
    """Files of one import.

    Args:
        url: a file or a folder, local or ``s3://``.
        scratch: local directory for downloads.

    Attributes:
        url: as given.
        single: whether the URL names one file.
        sizes: bytes of each file, by name; the manifest is left out, and so is what waits to be part of an export.
        manifest: manifest of an export of this package; None in any other folder.

    Raises:
        InputError: nothing is there, or it is being written.
        FormatError: the manifest is damaged.
    """

    def __init__(self, url: str, scratch: Path) -> None:
        self.url, self._scratch = url.rstrip("/"), scratch
        self.single, self._store, self.sizes = _look(url)
        self.manifest = None if self.single else self._read_manifest()
        if self.manifest is None and MARK in self.sizes:
            raise InputError(f"{self.url}: {UNFINISHED}")
        if self.manifest is not None:
            self.sizes = {name: record.size for name, record in sorted(self.manifest.objects.items())}

    def _read_manifest(self) -> ExchangeManifest | None:
        found = find_document(ExchangeManifest, self._store, MANIFEST)
        return None if found is None else found[0]

    @property
    def names(self) -> list[str]:
        """Names of the files, sorted."""
        return list(self.sizes)

    def source(self, name: str) -> str:
        """Return the name of a file in messages."""
        return f"{self._store.url}/{name}"

    def has(self, name: str) -> bool:
        """Return whether a file exists in the folder.

        For a single file, it is the folder of that file.
        """
        return self._store.head(name) is not None

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """Make a file available on the local disk while the block runs.

        Raises:
            FormatError: it has other bytes than recorded in the manifest.
            NotFoundError: it is missing.
        """
        record = None if self.manifest is None else self.manifest.objects.get(name)
        in_place = isinstance(self._store, LocalStore)
        path = Path(self._store.url) / name if in_place else self._scratch / name
        if not in_place and record is None:
            self._store.fetch(name, path)
        elif not in_place and record is not None:
            fetch_verified(self._store, name, path, sha256=record.sha256, size=record.size)
        elif not path.is_file():
            raise NotFoundError(f"{path}: missing")
        elif record is not None and (path.stat().st_size != record.size or sha256_file(path) != record.sha256):
            raise FormatError(f"{path}: not the bytes that {MANIFEST} recorded; it was damaged or changed")
        try:
            yield path
        finally:
            if not in_place:
                path.unlink()

    def typed(self, suffixes: tuple[str, ...], entity: str | None) -> dict[str, list[str]]:
        """Return the files of each entity type.

        Args:
            suffixes: that files of vectors end with.
            entity: the type of all files; None where the manifest has the types.

        Raises:
            ConfigError: the type is not known.
            InputError: there is no file of vectors.
        """
        files = [name for name in self.names if name.lower().endswith(suffixes) and not is_hidden(name)]
        if self.single:
            files = self.names
        elif self.manifest is not None:
            listed = {file for record in self.manifest.types.values() for file in record.files}
            files = [name for name in files if name in listed]
        if not files:
            raise InputError(f"{self.url}: holds no file that ends in {' or '.join(suffixes)}")
        by_type = self._by_type(files)
        if entity is None and not by_type:
            raise ConfigError(f"{self.url}: nothing here tells the entity type of the vectors; give --type")
        if entity is None:
            return by_type
        if by_type and entity not in by_type:
            raise ConfigError(f"{self.url}: holds vectors of {', '.join(by_type)}, none of {entity!r}")
        return {entity: by_type.get(entity, files)}

    def _by_type(self, files: list[str]) -> dict[str, list[str]]:
        """Return the files of each type in the manifest.

        None are returned where a file holds several types.
        """
        if self.manifest is None:
            return {}
        by_type = {}
        for name, record in self.manifest.types.items():
            by_type[name] = [file for file in record.files if file in files]
        listed = [file for found in by_type.values() for file in found]
        return by_type if len(set(listed)) == len(listed) else {}

    @property
    def is_escaped(self) -> bool:
        """Whether names are percent-encoded according to the manifest."""
        return self.manifest is not None and self.manifest.names == "percent-encoded"


def _look(url: str) -> tuple[bool, Store, dict[str, int]]:
    if not url.endswith("/"):
        store, name = open_file(url)
        if (info := store.head(name)) is not None:
            return True, store, {name: info.size}
    store = open_store(url)
    sizes = {info.key: info.size for info in store.list() if not info.key.startswith((MANIFEST, PARTS, STAGED))}
    if not sizes:
        raise InputError(f"{url}: nothing there to import; check the path, or merge the parts of an export first")
    return False, store, sizes
