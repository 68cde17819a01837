"""Writing of whole files, and parsing of numbers in text files.

A file appears under its name only when it is whole.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pbg_tasks.errors import FormatError, ResourceError
from pbg_tasks.storage.files import disk_error
from pbg_tasks.storage.vouched import vouch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import h5py

_NATURAL = re.compile(r"[0-9]{1,18}")  # always fits int64
_OVERHEAD = 1 << 16  # HDF5's own structures and the attributes


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that takes the name ``path`` on success.

    It is in the same directory as ``path``, and is removed on failure.

    Raises:
        ResourceError: disk or quota is full.
        StorageError: any other failure of the disk.
    """
    partial = path.with_suffix(f".tmp{path.suffix}")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise disk_error(path, _without_details(error)) from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def creating(path: Path, *, data_bytes: int = 0) -> Iterator[h5py.File]:
    """Open a new HDF5 file, which replaces ``path`` once closed.

    After an error, ``path`` stays as it was.

    Args:
        path: the name it gets.
        data_bytes: bytes that will be written at least, as far as known.

    Raises:
        ResourceError: disk or quota is full, or will be.
        StorageError: any other failure of the disk.
    """
    import h5py  # here, as tasks that only move documents have no use for it, nor for NumPy

    with replacing(path) as partial:
        require_space(path, data_bytes)
        try:
            with h5py.File(partial, "w", libver="earliest") as file:
                yield file
        except RuntimeError as error:  # h5py raises it when closing fails, and its context has the reason
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
    vouch(path)


def copied(source: Path, path: Path) -> None:
    """Write a copy of a file that this package wrote.

    Raises:
        ResourceError: disk or quota is full.
        StorageError: any other failure of the disk.
    """
    with replacing(path) as partial:
        shutil.copyfile(source, partial)
    vouch(path)


def require_space(path: Path, data_bytes: int) -> None:
    """Check that the disk has room.

    HDF5 may crash the process after it met a full disk.

    Raises:
        ResourceError: it has no room.
    """
    disk = os.statvfs(path.parent)
    free = disk.f_bavail * disk.f_frsize
    if free < data_bytes + _OVERHEAD:
        raise ResourceError(
            f"{path}: needs {data_bytes + _OVERHEAD} bytes of which the disk has {free}; free some space or use "
            "another disk"
        )


def parse_natural(text: str, *, source: str) -> int:
    """Parse a whole number of at least 0.

    Raises:
        FormatError: ``text`` is not a whole number from 0 to 10**18 - 1.
    """
    if not _NATURAL.fullmatch(text):
        raise FormatError(f"{source}: expected a whole number of at most 18 digits, found {text[:40]!r}")
    return int(text)


def _without_details(error: OSError) -> OSError:
    """Return the error without h5py's additions to its message.

    They are addresses, times, and several lines.
    """
    return OSError(error.errno, os.strerror(error.errno)) if error.errno else error
