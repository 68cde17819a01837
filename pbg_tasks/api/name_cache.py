"""Name indexes that this machine built, for models whose files have none.

They are kept in the cache directory, by the hash of the names' files, and removed when they were not used for a month.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import pyarrow as pa

from pbg_tasks.datasets.fetch import cache_directory
from pbg_tasks.errors import ConfigError, FormatError
from pbg_tasks.formats.entities import stream_names
from pbg_tasks.formats.name_index import FORMAT, MappedNames, digests_file_name, index_file_name
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.name_index import BUDGET, index_names
from pbg_tasks.storage.staging import Scratch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from hashlib import _Hash as Hash

    from pbg_tasks.tasks.model_source import Source

_UNUSED_SECONDS = 30 * 86400
_PATIENCE_SECONDS, _PAUSE_SECONDS = 600.0, 0.1
"""Longest wait for another process that builds an index, as it may be stopped; and seconds between two looks."""
_TYPE = "names"
"""Stands for the type in names of cached files, which are found by the names' hash alone."""


def cached_index(source: Source, entity: str, counts: Sequence[int], scratch: Path) -> MappedNames:
    """Open the index of a type's names; the first time, build it.

    Args:
        source: of the model.
        entity: type.
        counts: entities of each partition.
        scratch: directory for downloads, and for the index where the cache cannot be read or written.

    Raises:
        FormatError: the names or the index are damaged, a name occurs twice, there are not as many names as entities,
            or the names were changed meanwhile.
    """
    digests = source.names_digests(entity, scratch)
    facts = [FORMAT, *map(str, counts), *digests]
    place = _place(hashlib.sha256(" ".join(facts).encode()).hexdigest(), scratch)
    if not place.is_dir():
        with _alone(place):
            if not place.is_dir():
                place = _keep(_build(source, entity, counts, digests, scratch), place)
    with suppress(OSError):
        os.utime(place)
    path, hashes = place / index_file_name(_TYPE), place / digests_file_name(_TYPE)
    advice = f"remove {place}: the next opening builds it anew"
    try:
        return MappedNames(path, hashes.read_bytes(), counts=counts, source=str(path), advice=advice)
    except OSError as error:
        raise FormatError(f"{hashes}: cannot be read: {error.strerror}; {advice}") from None


def _place(name: str, scratch: Path) -> Path:
    """Return the directory of an index in the cache.

    It is in scratch where there is no home, or it is another user's, as where a process has ``HOME=/root`` and is not
    root.
    """
    try:
        place = cache_directory() / "names" / name
        place.is_dir()
    except (ConfigError, OSError):
        return scratch / name
    return place


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Let one process build an index, while others wait for it."""
    lock = target.with_suffix(".lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
        descriptor = _held(lock)
    except OSError:  # the home may be read-only, as in containers; two that build one index are no harm
        yield
        return
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()
        os.close(descriptor)


def _held(lock: Path) -> int:
    """Lock a file that another process may hold for some time.

    Returns:
        Its descriptor, whose closing unlocks it.

    Raises:
        OSError: it cannot be locked, or not in time.
    """
    descriptor, deadline = os.open(lock, os.O_RDONLY | os.O_CLOEXEC), time.monotonic() + _PATIENCE_SECONDS
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_SECONDS)
            else:
                return descriptor
    except OSError:
        os.close(descriptor)
        raise


def _build(source: Source, entity: str, counts: Sequence[int], digests: Sequence[str], scratch: Path) -> Path:
    """Build an index in scratch, of names with these hashes.

    Returns:
        Its directory.
    """
    made = Path(mkdtemp(prefix="index-", dir=scratch))
    read = [hashlib.sha256() for _ in counts]
    with Scratch(scratch) as work, connect(BUDGET, work.path) as connection:
        files = zip(source.distinct_names(entity, scratch), counts, read, strict=True)
        names = (some for path, count, digest in files for some in _names(path, count, digest))
        index_names(connection, names, _TYPE, counts, made)
    if [digest.hexdigest() for digest in read] != digests:
        raise FormatError(
            f"{source.entities.url}: the names of {entity} changed while they were read; open the model again"
        )
    return made


def _keep(made: Path, target: Path) -> Path:
    """Move an index to the cache, where both files appear at once.

    Returns:
        Its directory: where the cache cannot be written, that where it was made.
    """
    copy = target.with_name(f"building-{made.name}")
    try:
        _tidy(target.parent)
        shutil.copytree(made, copy)
        copy.rename(target)
    except OSError:
        if not target.is_dir():  # no other process was earlier, with the same names
            return made
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    shutil.rmtree(made)
    return target


def _names(path: Path, count: int, digest: Hash) -> Iterator[pa.Array]:
    """Yield the names of a partition, some at a time."""
    found = 0
    for names in stream_names(path, digest):
        found += len(names)
        try:
            yield pa.array(names, pa.large_string())
        except UnicodeEncodeError as error:
            raise FormatError(f"{path}: holds a name that is no Unicode text ({error.reason})") from None
    if found != count:
        raise FormatError(f"{path}: holds {found} names, the partition has {count} entities")


def _tidy(directory: Path) -> None:
    """Remove indexes unused for long, and what killed processes left."""
    for path in directory.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _UNUSED_SECONDS:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()
