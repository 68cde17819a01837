"""Atomic writing of Angel's folders.

A folder appears only when it is whole: by a rename on a local disk, and in a store because its metadata is written
last.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import contextmanager
from glob import escape
from typing import TYPE_CHECKING

from pbg_tasks.errors import ConflictError
from pbg_tasks.formats.angel.meta import META_NAMES
from pbg_tasks.storage.files import abandoned, disk_errors, hold, make_directory, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pbg_tasks.storage.base import Store


@contextmanager
def replacing_directory(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield an empty hidden directory that takes the name ``path`` on success.

    It is in the same directory as ``path``, and is removed on failure. As in Angel's own commit, a replaced directory
    takes two renames: a crash between them leaves the old one under a hidden name with ``.old`` at its end.

    Args:
        path: the name it gets.
        replace: whether it may replace a directory of that name, with all files in it.

    Raises:
        ConflictError: the name is taken.
        StorageError: the disk failed.
    """
    token = secrets.token_hex(4)
    part, old = path.with_name(f".{path.name}.{token}.part"), path.with_name(f".{path.name}.{token}.old")
    if path.exists() and not (replace and path.is_dir()):
        raise ConflictError(f"{path} exists already: remove it or write elsewhere")
    with disk_errors(path):
        make_directory(path.parent)
        for leftover in abandoned(path.parent, f".{escape(path.name)}.*.part"):
            shutil.rmtree(leftover)
        part.mkdir()
        held = hold(part)
    try:
        with disk_errors(path):
            yield part
            _flush(part)
            if path.exists():
                path.rename(old)
            part.rename(path)
            sync_directory(path.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    finally:
        os.close(held)
    with disk_errors(old):
        if old.exists():
            shutil.rmtree(old)


def upload(directory: Path, store: Store, prefix: str) -> None:
    """Replace a folder in a store by a local directory.

    Old metadata is removed first and new metadata is written last: at any time, a folder with metadata is a whole one.

    Args:
        directory: of a matrix or of a model.
        store: to which it is copied.
        prefix: of the keys, without a slash at the end.
    """
    start = f"{prefix}/" if prefix else ""
    new = {f"{start}{path.relative_to(directory).as_posix()}": path for path in directory.rglob("*") if path.is_file()}
    before = [info.key for info in store.list(start)]
    for key in filter(_is_meta, before):
        store.delete(key)
    for key in sorted(new, key=lambda key: (_is_meta(key), key)):
        store.put(key, new[key])
    for key in before:
        if key not in new and not _is_meta(key):
            store.delete(key)


def _flush(directory: Path) -> None:
    """Flush every file of a directory before it is shown."""
    for path in directory.rglob("*"):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _is_meta(key: str) -> bool:
    return key.rpartition("/")[2] in META_NAMES
