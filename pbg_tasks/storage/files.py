"""Writing of local files that appear only when whole."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pbg_tasks.errors import AccessError, PbgError, ResourceError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_ABANDONED_SECONDS = 60.0  # a younger file may be created but not yet held


def disk_error(path: Path | str, error: OSError) -> PbgError:
    """Return the error of this package for an error of the system."""
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
    """Turn errors of the operating system into errors that name ``path``.

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
    """Write ``data`` at ``offset``.

    It loops because one system call may write less than it is given.
    """
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def take_room(path: Path) -> None:
    """Take the room of a file that was only given a length.

    A full disk is an error here. Where the file is mapped, it would be a signal that ends the process, at the first
    page without room.

    Raises:
        ResourceError: disk or quota is full; the file is empty then.
        StorageError: any other failure of the disk.
    """
    with disk_errors(path), path.open("rb+") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError:
            file.truncate(0)
            raise


def open_to_read(path: Path) -> int:
    """Open a file, and wait for no named pipe.

    Raises:
        OSError: it cannot be opened.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except BlockingIOError:  # NFS or Samba has lent the file to another machine, and asks for it back
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def sync_directory(directory: Path) -> None:
    """Flush a directory.

    Without this, a new name in it may be lost in a power failure.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Make a directory and its missing parents.

    Each is flushed into its parent. One that another process removes meanwhile is made anew.
    """
    while not directory.is_dir():
        make_directory(directory.parent)
        with suppress(FileNotFoundError):
            directory.mkdir(exist_ok=True)
            sync_directory(directory.parent)


@contextmanager
def landing(target: Path, *, durable: bool = True) -> Iterator[int]:
    """Open a hidden file that takes the name ``target`` on success.

    It is in the same directory as ``target``.

    Args:
        target: path of the file.
        durable: whether it is flushed before it takes the name, and so outlasts a failure of power.

    Yields:
        The descriptor, open for writing. On failure the hidden file is removed and ``target`` is as before.

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
                if durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            part.rename(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        if durable:
            sync_directory(target.parent)


def hold(path: Path) -> int:
    """Mark a file or directory as in use.

    The mark ends when the returned descriptor is closed or the process ends.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def abandoned(folder: Path, pattern: str, *, age: float = _ABANDONED_SECONDS) -> Iterator[Path]:
    """Walk the files and directories of killed processes, for removal.

    They were marked by ``hold``, and the process that held them has ended. Others may write to the folder, so that
    no link is followed and no pipe waited for.

    Args:
        folder: that they are in.
        pattern: of their names.
        age: seconds since the last change; 0 where nothing has such a name before it is held.
    """
    for path in sorted(folder.glob(pattern)):
        try:
            descriptor = _open_to_lock(path)
        except OSError:
            continue  # removed a moment ago, of another user, or a link
        try:
            found = os.fstat(descriptor)
            own = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)  # to remove a tree opens it, and waits
            if own and (not age or time.time() - found.st_mtime > age):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path
        except OSError:
            continue  # its process still runs, or the file system takes no lock
        finally:
            os.close(descriptor)


def _open_to_lock(path: Path) -> int:
    """Open a file or directory to lock it.

    NFS locks only files that are open for writing, which a directory and another user's file may not be.
    """
    flags = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDWR | flags)
    except (IsADirectoryError, PermissionError):
        return os.open(path, os.O_RDONLY | flags)
