"""Files that appear on the local disk only when whole and flushed."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pbg_tasks.errors import AccessError, PbgError, ResourceError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_ABANDONED_SECONDS = 60.0  # what is younger may be between its creation and its hold


def disk_error(path: Path | str, error: OSError) -> PbgError:
    """Return the error of ours that says what went wrong at ``path``."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return ResourceError(f"{path}: the disk or its quota is full ({reason}); free some space or use another disk")
    if error.errno in _NO_DESCRIPTORS:
        return ResourceError(f"{path}: cannot be opened ({reason}); raise `ulimit -n`")
    if error.errno in _REFUSED:
        return AccessError(f"{path}: not permitted ({reason}); check the owner and mode, or use another place")
    return StorageError(f"{path}: {reason}")


@contextmanager
def disk_errors(path: Path | str) -> Iterator[None]:
    """Turn what the operating system raises within into errors of ours that name ``path``.

    Raises:
        ResourceError: disk or quota is full.
        AccessError: not permitted.
        StorageError: any other failure.
    """
    try:
        yield
    except OSError as error:
        raise disk_error(path, error) from error


def write_all(descriptor: int, data: bytes, offset: int) -> None:
    """Write ``data`` at ``offset``: one system call may write less than it is given."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def sync_directory(directory: Path) -> None:
    """Flush a directory, without which a new name in it may be lost with the power."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Make a directory and its missing parents, each flushed into the one above it."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


@contextmanager
def landing(target: Path) -> Iterator[int]:
    """Open a hidden neighbour of ``target`` for writing; it is flushed and takes the name ``target`` on success.

    Yields:
        The descriptor, open for writing. On failure the neighbour is removed and ``target`` is as before.

    Raises:
        ResourceError: disk or quota is full.
        StorageError: any other failure of the disk.
    """
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            try:
                yield descriptor
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            part.rename(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        sync_directory(target.parent)


def hold(path: Path) -> int:
    """Mark a file or directory as in use until the returned descriptor is closed or the process ends."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def abandoned(folder: Path, pattern: str) -> Iterator[Path]:
    """Walk the files and directories that a process held and left when it was killed, for removal."""
    for path in sorted(folder.glob(pattern)):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):
            continue  # just removed, or another user's
        try:
            if time.time() - os.fstat(descriptor).st_mtime > _ABANDONED_SECONDS:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path
        except BlockingIOError:
            continue  # its process lives
        finally:
            os.close(descriptor)
