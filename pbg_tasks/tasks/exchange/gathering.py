"""Delivery of the files that parts of an export have stored."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint.manifest import decode
from pbg_tasks.errors import ConflictError, FormatError, NotFoundError
from pbg_tasks.publish.exchange import MANIFEST, ExchangeManifest
from pbg_tasks.storage import LocalStore
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.storage.staging import sha256_file
from pbg_tasks.tasks.exchange.delivery import Delivery, blob, carry_out, move

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pbg_tasks.checkpoint import ObjectRecord
    from pbg_tasks.storage import Store

_THREADS = 4


def deliver_parts(
    store: Store,
    manifest: ExchangeManifest,
    keys: Mapping[str, str],
    *,
    overwrite: bool,
    check: Callable[[], None] = lambda: None,
    again: Callable[[str], str],
) -> bool:
    """Give the files of parts their names, the manifest last.

    Nothing is done where another process has delivered them meanwhile.

    Args:
        store: rooted at the destination.
        manifest: of the export.
        keys: present keys of its files, by name.
        overwrite: as for ``deliver``.
        check: as for ``deliver``.
        again: returns what makes a file that is missing, by its name, for messages.

    Returns:
        Whether the parts may be removed: no other merge has begun that may need them.

    Raises:
        ConflictError: another writer stored something there meanwhile.
        NotFoundError: the file of a part is missing. An export that was there is whole.
        StorageError: the store failed. A further try goes on.
    """
    begin = partial(_Gathering, keys, manifest.objects, again)
    return carry_out(store, manifest, begin, overwrite=overwrite, check=check, done=partial(is_whole, store, manifest))


def is_whole(store: Store, manifest: ExchangeManifest) -> bool:
    """Return whether an export stands with this manifest and all files."""
    if standing(store) != manifest:
        return False

    def is_there(name: str) -> bool:
        found = store.head(name)
        return found is not None and found.size == manifest.objects[name].size

    return all(in_parallel(is_there, manifest.objects, _THREADS))


def standing(store: Store) -> ExchangeManifest | None:
    """Return the manifest of a standing export; None of a damaged one."""
    found = blob(store, MANIFEST)
    try:
        return None if found is None else decode(ExchangeManifest, found.data, source=f"{store.url}/{MANIFEST}")
    except FormatError:
        return None


class _Gathering(Delivery):
    """Delivery of files that parts have stored.

    In S3 a part keeps its files until the manifest is stored; on a disk they are moved, and known again by their bytes.
    So a merge that was killed can be tried again. Nothing is moved or removed before all files were found.

    Args:
        keys: present keys by name.
        objects: sizes and hashes by name.
        again: returns what makes a file that is missing.
        store: rooted at the destination.
        before: as for ``Delivery``.
    """

    def __init__(
        self,
        keys: Mapping[str, str],
        objects: Mapping[str, ObjectRecord],
        again: Callable[[str], str],
        store: Store,
        before: Iterable[str],
    ) -> None:
        super().__init__(store, keys, before)
        self._keys, self._objects = keys, objects
        self._again = again
        self._waiting = list[str]()

    def put(self, *, any_key: bool) -> None:
        self._find(any_key=any_key)
        self.unstage()

    def stage(self) -> None:
        self._find(any_key=True)

    def unstage(self) -> None:
        self._mixed = True  # the files that are moved stay for a further try
        in_parallel(self._name, self._waiting, _THREADS)

    def _find(self, *, any_key: bool) -> None:
        """Find the files that wait, and whether they may be moved."""
        waits = in_parallel(partial(self._waits, any_key=any_key), self._keys, _THREADS)
        self._waiting = [name for name, waiting in zip(self._keys, waits, strict=True) if waiting]

    def _waits(self, name: str, *, any_key: bool) -> bool:
        if self._store.head(self._keys[name]) is None:
            if not self._is_moved(name):
                raise NotFoundError(f"{self._store.url}/{self._keys[name]}: is missing; {self._again(name)}")
            return False
        if not any_key and name not in self._left and self._store.head(name) is not None:
            raise ConflictError(f"{self._store.url}/{name}: another writer stored it; name another place")
        return True

    def _name(self, name: str) -> None:
        key, there = self._keys[name], self._store.head(name)
        if isinstance(self._store, LocalStore):
            move(self._store, key, name)
            return
        try:
            self._store.copy(key, name)
        except ConflictError:
            if there is None:
                raise
            self._store.delete(name)
            self._store.copy(key, name)

    def _is_moved(self, name: str) -> bool:
        """Return whether a merge before has moved the file."""
        if not isinstance(self._store, LocalStore):
            return False
        path = Path(self._store.url) / name
        return path.is_file() and sha256_file(path) == self._objects[name].sha256
