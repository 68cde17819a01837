"""Verified downloads, uploads of many files, and a scratch directory."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypedDict

from pbg_tasks.errors import ConflictError, FormatError, ResourceError
from pbg_tasks.progress import human_count
from pbg_tasks.storage.files import abandoned, disk_errors, hold
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.storage.vouched import vouch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pbg_tasks.storage.base import ObjectInfo, Store


_HELD, _UNHELD = "pbg-scratch-", "pbg-unheld-"
"""Beginnings of the names of scratch directories.

One is made under the second and takes the first once it is held, so a process that ends at any moment leaves nothing
that would have to become old before it may be removed.
"""
_MARK = ".held"
"""File in a scratch directory that its process locks, too.

NFS locks files among machines, and directories within each machine alone.
"""


class StoredFile(TypedDict):
    """Facts that identify an uploaded file's bytes."""

    sha256: str
    size: int


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with disk_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_verified(store: Store, key: str, target: Path, *, sha256: str, size: int) -> Path:
    """Download an object with a recorded hash and return ``target``.

    No file is left at ``target`` unless its bytes are right.

    Raises:
        FormatError: the object has other bytes.
        NotFoundError: it does not exist.
        ResourceError: no room left on the local disk.
    """
    info = store.fetch(key, target)
    found = f"{info.size} bytes" if info.size != size else f"sha256 {sha256_file(target)}"
    expected = f"{size} bytes" if info.size != size else f"sha256 {sha256}"
    if found != expected:
        target.unlink()
        raise FormatError(
            f"{store.url}/{key} has {found} where {expected} were recorded: it was damaged or changed after it was "
            "written; restore it or, in a run, remove it and the result of the task that made it, results/TASK.json, "
            "and run that task again"
        )
    vouch(target)
    return target


def fetch_many(store: Store, items: Iterable[tuple[str, Path, str, int]], *, threads: int = 4) -> list[Path]:
    """Download and verify several objects at once.

    Args:
        store: that has them.
        items: ``(key, target, sha256, size)`` of each.
        threads: downloads under way at once.

    Returns:
        The targets, in the order of the items.

    Raises:
        FormatError: an object has other bytes than recorded.
        NotFoundError: one does not exist.
        ResourceError: no room left on the local disk.
    """

    def fetch(item: tuple[str, Path, str, int]) -> Path:
        key, target, sha256, size = item
        return fetch_verified(store, key, target, sha256=sha256, size=size)

    return in_parallel(fetch, items, threads)


def put_all_new(store: Store, files: Mapping[str, Path]) -> dict[str, StoredFile]:
    """Upload files under new keys, with their SHA-256 in the metadata.

    An object that exists with equal bytes stays as it is, whether or not its hash is recorded.

    Raises:
        ConflictError: a key holds other bytes.
    """

    def put(item: tuple[str, Path]) -> StoredFile:
        key, path = item
        digest = sha256_file(path)
        try:
            info = store.put_new(key, path, metadata={"sha256": digest})
        except ConflictError:
            existing = store.head(key)
            if existing is None or existing.size != path.stat().st_size or _digest_of(store, existing) != digest:
                raise
            info = existing
        return StoredFile(sha256=digest, size=info.size)

    return dict(zip(files, in_parallel(put, files.items(), 2), strict=True))


def _digest_of(store: Store, info: ObjectInfo) -> str:
    """Return an object's hash, although a mirror may have lost it."""
    if "sha256" in info.metadata:
        return info.metadata["sha256"]
    with Scratch() as scratch:
        store.fetch(info.key, scratch.path / "object")
        return sha256_file(scratch.path / "object")


def put_equal(store: Store, key: str, data: bytes) -> None:
    """Create an object, unless an earlier try stored the same bytes.

    Raises:
        ConflictError: there is another one.
    """
    try:
        store.put_new(key, data)
    except ConflictError:
        if store.get(key).data != data:
            raise


@contextmanager
def named(local: Path, url: str) -> Iterator[None]:
    """Make errors about a local copy name the original.

    A user cannot do anything with a path in scratch.
    """
    try:
        yield
    except FormatError as error:
        raise FormatError(str(error).replace(str(local), url)) from None


def scratch_root(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the parent of scratch directories.

    It is ``$PBG_SCRATCH``, else the system's temporary directory.

    Raises:
        ResourceError: the system has none that can be written to.
    """
    try:
        return Path(environment.get("PBG_SCRATCH") or tempfile.gettempdir())
    except FileNotFoundError as error:
        raise ResourceError(
            f"{error.strerror}: their disks are full or read-only; free some space, or set PBG_SCRATCH"
        ) from None


def sweep(root: Path) -> list[Path]:
    """Remove the scratch directories of killed processes.

    Those of running processes stay, and so does what this user may not remove.

    Args:
        root: their parent.

    Returns:
        The removed directories.
    """
    removed = []
    for pattern, age in ((f"{_HELD}*", {"age": 0.0}), (f"{_UNHELD}*", {})):
        for leftover in abandoned(root, pattern, **age):
            if _is_held_elsewhere(leftover):
                continue
            # Another sweep may have found it too, and a leftover that stays is no reason to fail.
            shutil.rmtree(leftover, ignore_errors=True)
            removed += [] if leftover.exists() else [leftover]
    return removed


def _is_held_elsewhere(directory: Path) -> bool:
    """Return whether a process locks its mark, perhaps on another machine."""
    return (directory / _MARK).exists() and not any(abandoned(directory, _MARK, age=0.0))


def _hold_mark(path: Path) -> int:
    """Lock a new mark.

    A file system that locks no file keeps what a killed process left there.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


class Scratch:
    """Private directory on a local disk, removed when the block ends.

    Directories that killed processes left below the same root are removed at the next start.

    Args:
        root: where it is made; by default ``$PBG_SCRATCH``, else the system's temporary directory.

    Attributes:
        path: the directory, within the ``with`` block.
    """

    path: Path

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or scratch_root()

    def require(self, size: int) -> None:
        """Check that ``size`` more bytes fit on the disk.

        Raises:
            ResourceError: they do not.
        """
        free = shutil.disk_usage(self.path).free
        if free < size:
            raise ResourceError(
                f"{self._root}: {human_count(size)}B of scratch space are needed and {human_count(free)}B are free; "
                "free some, or set PBG_SCRATCH to a larger disk"
            )

    def __enter__(self) -> Self:
        with disk_errors(self._root):
            self._root.mkdir(parents=True, exist_ok=True)
            sweep(self._root)
            made = Path(tempfile.mkdtemp(prefix=_UNHELD, dir=self._root))
            self._hold = hold(made)
            self._mark = _hold_mark(made / _MARK)
            self.path = made.rename(made.with_name(made.name.replace(_UNHELD, _HELD)))
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._mark)  # before it is removed, because NFS renames an open file
        with disk_errors(self.path), suppress(FileNotFoundError):  # others clean temporary directories, too
            shutil.rmtree(self.path)
        os.close(self._hold)
