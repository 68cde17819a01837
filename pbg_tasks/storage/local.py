"""Store in a directory of a local (or cluster) file system.

An object is a plain file below the root, so a PBG reader opens the directory as it is. The store's own records are in
``<root>/.pbg``: unfinished writes, locks and metadata. An object's tag is its modification time (made unique by the
store) and size; a copy shares file and tag. Its metadata is in a file named by key and tag and is written first, so
that the one rename which makes the object visible makes its metadata visible too. Files that a crash leaves behind are
never read.

The file is longer than others so that the order of locks and writes, which keeps writers apart, is in one place.
"""

from __future__ import annotations

import fcntl
import filecmp
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pbg_tasks.errors import ConfigError, ConflictError, FormatError, NotFoundError, StorageError
from pbg_tasks.storage.base import Blob, FinalFile, ObjectInfo
from pbg_tasks.storage.files import (
    abandoned,
    disk_error,
    disk_errors,
    landing,
    make_directory,
    open_to_read,
    sync_directory,
    write_all,
)
from pbg_tasks.storage.names import RESERVED, check_key, check_metadata, check_prefix
from pbg_tasks.storage.vouched import set_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_METADATA, _RECORDS = "metadata", f"{'[0-9a-f]' * 64}.*"  # a folder; and files in it, by the hash of their key
_LOCKS = 64
_COPIED = 1 << 30  # bytes that one call copies at most
_LOCK_SECONDS = 300.0  # a rename and its syncs take less, unless a process is stopped or its disk hangs
_LOCK_PAUSES = 0.0005, 0.02  # seconds between two attempts, at first and at most


class LocalStore:
    """Store of files below a directory, safe among threads and processes.

    All processes must be of one machine, or share a file system with locks, and open a directory at the same root:
    locks and metadata belong to the root. The file system must have hard links and ``flock``. The bytes of a
    ``FinalFile`` of the same file system, and of an object that is copied, are not written again: the file gets a
    further name.

    Args:
        root: the directory; made at the first write.
    """

    def __init__(self, root: Path | str) -> None:
        self._root = Path(os.path.abspath(root))  # noqa: PTH100 (Path.resolve would follow links: the URL stays as given)
        self._own = self._root / RESERVED
        self._swept = False

    @property
    def url(self) -> str:
        """The root as an absolute path."""
        return str(self._root)

    def head(self, key: str) -> ObjectInfo | None:
        """Return an object's facts with metadata; None without the object."""
        path = self._path(key)
        with disk_errors(path):
            while True:
                status = _status(path)
                if status is None:
                    return None
                info = self._info(key, status)
                if info.metadata or _tag_at(path) == info.tag:
                    return info

    def get(self, key: str) -> Blob:
        """Read a small object as a whole; raises ``NotFoundError`` without it."""
        with (
            self._reading(key) as (source, info),
            disk_errors(self._path(key)),
            os.fdopen(os.dup(source), "rb") as file,
        ):
            return Blob(info, file.read())

    def fetch(self, key: str, target: Path) -> ObjectInfo:
        """Copy an object to a file that appears only when whole.

        It raises ``NotFoundError`` and ``ResourceError``.
        """
        with self._reading(key) as (source, info):
            if not (isinstance(target, FinalFile) and _linked(source, target)):
                with landing(target, durable=False) as sink:
                    _copy_bytes(source, sink)
        return info

    def get_range(self, info: ObjectInfo, start: int, stop: int) -> bytes:
        """Read bytes ``start`` to ``stop`` of a version, where they exist."""
        path = self._path(info.key)
        with self._reading(info.key) as (descriptor, there), disk_errors(path):
            if there.tag != info.tag:
                raise StorageError(f"{path} was changed while it was read; read it again")
            found, stop = bytearray(), min(stop, info.size)
            while piece := os.pread(descriptor, max(stop - start - len(found), 0), start + len(found)):
                found += piece
            return bytes(found)

    def put_new(self, key: str, source: bytes | Path, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        """Create an object; raises ``ConflictError`` when it exists."""
        return self.swap(key, source, expected=None, metadata=metadata)

    def swap(
        self, key: str, source: bytes | Path, *, expected: ObjectInfo | None, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        """Replace the version ``expected`` (None: create).

        It raises ``ConflictError`` when the object is another version.
        """
        pairs = check_metadata(metadata)
        with self._draft(key, source) as draft, self._locked(key):
            found = _tag_now(self._path(key))
            if found != (expected and expected.tag):
                what = "exists already" if expected is None else "was changed" if found else "is gone"
                raise ConflictError(f"{self._path(key)} {what}: another writer was first, nothing was overwritten")
            return self._show(draft, key, pairs)

    def put(self, key: str, source: bytes | Path, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        """Write an object without a condition."""
        pairs = check_metadata(metadata)
        with self._draft(key, source) as draft, self._locked(key):
            return self._show(draft, key, pairs)

    def copy(self, source: str, target: str) -> ObjectInfo:
        """Copy an object and its metadata.

        Both keys have the same tag then. It raises ``ConflictError`` when ``target`` exists with other bytes.
        """
        check_key(target)
        with self._reading(source) as (descriptor, info):
            try:
                return self._name_again(descriptor, info, target)
            except ConflictError:
                with self._reading(target) as (other, existing), disk_errors(self._path(target)):
                    if not os.path.sameopenfile(descriptor, other) and not filecmp.cmp(
                        f"/proc/self/fd/{descriptor}", f"/proc/self/fd/{other}", shallow=False
                    ):
                        raise
                    return existing

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Walk objects by a prefix of keys, in key order, without metadata."""
        check_prefix(prefix)
        folder = prefix.rpartition("/")[0]
        yield from self._walk(f"{folder}/" if folder else "", prefix)

    def delete(self, key: str) -> None:
        """Remove an object; removing one that does not exist is no error."""
        path = self._path(key)
        with disk_errors(path):
            if _status(path) is None:
                return
        with self._locked(key), disk_errors(path):
            tag = _tag_at(path)
            path.unlink(missing_ok=True)
            sync_directory(path.parent)
            if tag is not None:
                self._metadata_path(key, tag).unlink(missing_ok=True)

    def abort_uploads(self, prefix: str, *, before: float, dry_run: bool = False) -> int:  # noqa: ARG002 - Store's
        """Return 0: a local store has no uploads in parts.

        A file is written in one piece, and the next writer removes one that a killed writer left.
        """
        check_prefix(prefix)
        return 0

    def remove_orphans(self, *, old: Callable[[Sequence[ObjectInfo]], bool], dry_run: bool = False) -> int:
        """Remove metadata of versions that are gone.

        Such metadata is left when a writer is killed between two steps, or when a file is removed without the store.
        """
        folder, orphans = self._own / _METADATA, 0
        with disk_errors(folder):
            for record in [*folder.glob(_RECORDS), *folder.glob(f".{_RECORDS}")]:
                with self._locked_by(record.name.lstrip(".")):  # no writer of its key is between two steps then
                    if (status := _status(record)) is None or not self._is_orphan(record):
                        continue
                    if old([ObjectInfo(record.name, status.st_size, _tag(status), modified=status.st_mtime)]):
                        orphans += 1
                        if not dry_run:
                            record.unlink(missing_ok=True)
        return orphans

    def tidy(self) -> None:
        """Remove the store's own folder where nothing in it is needed.

        For folders that others read, such as exports: nothing is removed while another writer holds a lock, and
        metadata and unfinished writes stay.
        """
        with ExitStack() as locks:
            paths = list((self._own / "locks").glob("[0-9][0-9]"))
            for path in paths:
                try:
                    file = locks.enter_context(path.open("rb"))
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    return
            for path in paths:
                with suppress(OSError):
                    path.unlink()
        for folder in (self._own / "locks", self._own / "unfinished", self._own / _METADATA, self._own):
            with suppress(OSError):  # it is not empty, or another writer has begun
                folder.rmdir()

    def _is_orphan(self, record: Path) -> bool:
        if record.suffix != ".json":
            return True  # its writer was killed while it wrote it
        try:
            key = check_key(json.loads(record.read_bytes())["key"])
        except (FileNotFoundError, ValueError, LookupError, TypeError, ConfigError):
            return False  # its writer removed it a moment ago, or it is damaged, which its reader reports
        tag = _tag_at(self._path(key))
        return tag is None or self._metadata_path(key, tag) != record

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _metadata_path(self, key: str, tag: str) -> Path:
        return self._own / _METADATA / f"{_digest(key)}.{tag}.json"

    def _info(self, key: str, status: os.stat_result) -> ObjectInfo:
        tag = _tag(status)
        record = self._metadata_path(key, tag)
        try:
            metadata = check_metadata(json.loads(record.read_bytes())["metadata"])
        except FileNotFoundError:
            metadata = {}  # none was given, or another program wrote the file
        except (ValueError, LookupError, TypeError, ConfigError) as error:
            raise FormatError(f"{record}, the metadata of {key}, is damaged; write the object again") from error
        except OSError as error:
            raise disk_error(record, error) from error
        return ObjectInfo(key, status.st_size, tag, metadata, status.st_mtime)

    @contextmanager
    def _reading(self, key: str) -> Iterator[tuple[int, ObjectInfo]]:
        """Open one version of an object, with the facts of that version."""
        path = self._path(key)
        while True:
            try:
                descriptor = open_to_read(path)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise NotFoundError(f"{path} does not exist") from error
            except OSError as error:
                raise disk_error(path, error) from error
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise NotFoundError(f"{path} is no file")
                info = self._info(key, status)
                # A writer removes the metadata of the version that it replaced. So no metadata may mean that this
                # version was replaced, and it is read again.
                if info.metadata or _tag_at(path) == info.tag:
                    yield descriptor, info
                    return
            finally:
                os.close(descriptor)

    @contextmanager
    def _draft(self, key: str, source: bytes | Path) -> Iterator[Path]:
        """Make an invisible, flushed file of ``source``.

        When the block ends, the file does not exist any more under this name.
        """
        path = self._path(key)
        folder = self._own / "unfinished"
        with disk_errors(path):
            _make_for_writing(folder)
            if not self._swept:
                self._swept = True
                for leftover in abandoned(folder, "*"):
                    leftover.unlink(missing_ok=True)
            draft = folder / secrets.token_hex(8)
            descriptor, kept = _open_draft(draft, source)
            try:
                # As in files.hold: the lock shows that the writer still runs. It is a shared one for a kept file,
                # because HDF5 locks files that it reads, and a kept file may be read meanwhile.
                fcntl.flock(descriptor, fcntl.LOCK_SH if kept else fcntl.LOCK_EX)
                if not kept:
                    _fill(descriptor, source)
                os.fsync(descriptor)
                yield draft
            finally:
                os.close(descriptor)
                draft.unlink(missing_ok=True)

    def _show(self, draft: Path, key: str, metadata: dict[str, str]) -> ObjectInfo:
        """Give a draft its name, in one step with its metadata.

        The caller holds the key's lock.
        """
        path = self._path(key)
        with disk_errors(path):
            before = _status(path)
            # Later than the version it replaces, even when the clock went back, so that no two versions share a tag.
            moment = max(time.time_ns(), before.st_mtime_ns + 1 if before else 0)
            set_time(draft, moment)
            status = draft.stat()
            self._write_metadata(key, _tag(status), metadata)
            if before is None:
                _link(draft, path)
            else:
                draft.replace(path)
            sync_directory(path.parent)
            if before is not None:
                self._metadata_path(key, _tag(before)).unlink(missing_ok=True)
        return ObjectInfo(key, status.st_size, _tag(status), metadata)

    def _write_metadata(self, key: str, tag: str, metadata: Mapping[str, str]) -> None:
        if metadata:
            record = self._metadata_path(key, tag)
            make_directory(record.parent)
            with landing(record) as sink:
                write_all(sink, json.dumps({"key": key, "metadata": metadata}).encode(), 0)

    def _name_again(self, descriptor: int, info: ObjectInfo, key: str) -> ObjectInfo:
        """Give an open object a second key.

        An object is replaced, never changed, so both keys may share a file. Where the file system or its rules refuse a
        further name, the bytes are copied.

        Raises:
            ConflictError: the key has an object. Nothing was written, since a repetition may find the disk full.
        """
        path = self._path(key)
        with self._locked(key), disk_errors(path):
            if _tag_at(path) is not None:
                raise _taken(path)
            self._write_metadata(key, info.tag, info.metadata)
            make_directory(path.parent)
            if _linked(descriptor, path):
                sync_directory(path.parent)
                return ObjectInfo(key, info.size, info.tag, info.metadata)
            self._metadata_path(key, info.tag).unlink(missing_ok=True)  # the copy has a tag of its own
        return self.put_new(key, Path(f"/proc/self/fd/{descriptor}"), metadata=info.metadata)

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Keep other writers of ``key`` out.

        These are threads, processes, and hosts that share a file system with locks.

        Raises:
            StorageError: another writer has held the lock for too long; nothing was written.
        """
        with self._locked_by(_digest(key)):
            yield

    @contextmanager
    def _locked_by(self, digest: str) -> Iterator[None]:
        path = self._own / "locks" / f"{int(digest[:4], 16) % _LOCKS:02d}"
        with disk_errors(path.parent):
            descriptor = _locked_file(path)
        try:
            yield
        finally:
            os.close(descriptor)

    def _walk(self, folder: str, prefix: str) -> Iterator[ObjectInfo]:
        """Walk the objects below ``folder``, in key order.

        A directory is sorted as its name with the slash, because keys contain the slash.
        """
        path = self._root / folder
        try:
            with os.scandir(path) as entries:
                names = sorted((f"{entry.name}/" if entry.is_dir() else entry.name) for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise disk_error(path, error) from error
        for name in names:
            key = f"{folder}{name}"
            if name == f"{RESERVED}/" or not (key.startswith(prefix) or prefix.startswith(key)):
                continue
            if name.endswith("/"):
                yield from self._walk(key, prefix)
            elif (status := _status(self._root / key)) is not None:
                yield ObjectInfo(key, status.st_size, _tag(status), modified=status.st_mtime)


def _make_for_writing(folder: Path) -> None:
    """Make the folder in which each write begins.

    Raises:
        ConfigError: the store's root, or what is above it, is a file.
    """
    try:
        make_directory(folder)
    except FileExistsError as error:
        if Path(error.filename).is_file():
            raise ConfigError(
                f"{error.filename}: is a file, not a directory; name a directory or s3://bucket/prefix"
            ) from None
        raise


def _locked_file(path: Path) -> int:
    """Open a lock file and lock it until it is closed.

    ``tidy`` may remove the file between the two steps; then a new one is locked.

    Raises:
        StorageError: another writer has held the lock for too long.
    """
    while True:
        try:
            make_directory(path.parent)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            continue
        try:
            _lock(descriptor, path)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _tag(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns:x}-{status.st_size:x}"


def _lock(descriptor: int, path: Path) -> None:
    """Lock an open file, for as long as it is open.

    Raises:
        StorageError: another writer has held the lock for too long.
    """
    deadline, (pause, most) = time.monotonic() + _LOCK_SECONDS, _LOCK_PAUSES
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StorageError(
                    f"{path}: another writer has kept this lock for {_LOCK_SECONDS:g} s, so nothing was written; it "
                    f"is stopped, or its disk hangs: find it with `fuser {path}`, and continue or end it"
                ) from None
        else:
            return
        time.sleep(pause)
        pause = min(2 * pause, most)


def _status(path: Path) -> os.stat_result | None:
    """Return a regular file's status; None when there is none."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _tag_at(path: Path) -> str | None:
    status = _status(path)
    return None if status is None else _tag(status)


def _tag_now(path: Path) -> str | None:
    """Return the tag of a file, opened so that no cache answers.

    For seconds after another machine replaced a file, NFS gives the status of the old one, but opens the new one.
    """
    with disk_errors(path):
        try:
            descriptor = open_to_read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    return _tag(status) if stat.S_ISREG(status.st_mode) else None


def _link(draft: Path, path: Path) -> None:
    """Give a draft its first name, never replacing a file.

    That holds even against a program that does not take the store's locks. A collection may remove its folder while
    that is empty.
    """
    while True:
        make_directory(path.parent)
        try:
            path.hardlink_to(draft)
        except FileNotFoundError:
            if not draft.exists():
                raise
        except FileExistsError as error:
            if path.is_dir():
                raise
            raise _taken(path) from error
        else:
            return


def _taken(path: Path) -> ConflictError:
    return ConflictError(f"{path} exists already: another writer was first, nothing was overwritten")


def _linked(descriptor: int, path: Path) -> bool:
    """Give an open file a further name; return whether that was possible."""
    try:
        # A directory makes Python follow the link to the file; an absolute path does not need one.
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)
    except OSError:
        return False
    return True


def _keep(source: Path, draft: Path) -> bool:
    """Give a file a second name; return whether that was possible.

    It is not on another file system. Nor is it for a file that has a second name: it is an object already, and a third
    name would change that object's time, and so its tag.
    """
    try:
        if source.stat().st_nlink > 1:
            return False
        set_time(source, time.time_ns())  # a file with an old time counts as left by a killed writer
        draft.hardlink_to(source.resolve())
    except OSError:
        return False
    return True


def _open_draft(draft: Path, source: bytes | Path) -> tuple[int, bool]:
    """Open a draft; return its descriptor and whether it is ``source`` itself.

    Its folder is made anew where ``tidy`` removed it meanwhile.
    """
    while True:
        kept = isinstance(source, FinalFile) and _keep(source, draft)
        flags = os.O_RDONLY if kept else os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            return os.open(draft, flags | os.O_CLOEXEC, 0o644), kept
        except FileNotFoundError:
            make_directory(draft.parent)


def _fill(draft: int, source: bytes | Path) -> None:
    if isinstance(source, bytes):
        write_all(draft, source, 0)
        return
    with disk_errors(source):
        reader = source.open("rb", buffering=0)
    with reader:
        _copy_bytes(reader.fileno(), draft)


def _copy_bytes(source: int, sink: int) -> None:
    """Copy the rest of a file, in the kernel where it can."""
    with suppress(OSError, AttributeError):  # between some file systems, and on some systems, it cannot
        while os.copy_file_range(source, sink, _COPIED):
            pass
    with os.fdopen(os.dup(source), "rb") as reader, os.fdopen(os.dup(sink), "wb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
