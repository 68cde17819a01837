"""Name indexes that this machine built, for models whose files have none.

They are kept in the cache directory, by the hash of the names' files, and removed when they were not used for a month.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import pyarrow as pa

from pbg_tasks.config.graph import Resources
from pbg_tasks.datasets.fetch import cache_directory
from pbg_tasks.errors import FormatError
from pbg_tasks.formats.entities import stream_names
from pbg_tasks.formats.name_index import FORMAT, MappedNames, digests_file_name, index_file_name
from pbg_tasks.prepare import connect
from pbg_tasks.prepare.name_index import index_names
from pbg_tasks.storage.staging import Scratch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pbg_tasks.tasks.model_source import Source

_UNUSED_SECONDS = 30 * 86400
_TYPE = "names"
"""Stands for the type in names of cached files, which are found by the names' hash alone."""


def cached_index(source: Source, entity: str, counts: Sequence[int], scratch: Path) -> MappedNames:
    """Open the index of a type's names; the first time, build it.

    Args:
        source: of the model.
        entity: type.
        counts: entities of each partition.
        scratch: directory for downloads, and for the index where the cache cannot be written.

    Raises:
        FormatError: the names or the index are damaged, or there are not as many names as entities.
    """
    facts = [FORMAT, *map(str, counts), *source.names_digests(entity, scratch)]
    place = cache_directory() / "names" / hashlib.sha256(" ".join(facts).encode()).hexdigest()
    if not place.is_dir():
        place = _build(source, entity, counts, scratch, place)
    with suppress(OSError):
        os.utime(place)
    path, digests = place / index_file_name(_TYPE), place / digests_file_name(_TYPE)
    advice = f"remove {place}: the next opening builds it anew"
    try:
        return MappedNames(path, digests.read_bytes(), counts=counts, source=str(path), advice=advice)
    except OSError as error:
        raise FormatError(f"{digests}: cannot be read: {error.strerror}; {advice}") from None


def _build(source: Source, entity: str, counts: Sequence[int], scratch: Path, target: Path) -> Path:
    """Build an index in the cache; return its directory.

    Both files appear there at once.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _tidy(target.parent)
        made = Path(mkdtemp(prefix="building-", dir=target.parent))
    except OSError:  # the home may be read-only, as in containers
        made = target = Path(mkdtemp(prefix=f"index-{target.name}-", dir=scratch))
    try:
        with Scratch(scratch) as work, connect(Resources(), work.path) as connection:
            files = zip(source.entity_names(entity, scratch), counts, strict=True)
            names = (some for path, count in files for some in _names(path, count))
            index_names(connection, names, _TYPE, counts, made)
        if made != target:
            with suppress(OSError):  # another process was earlier, with the same names
                made.rename(target)
        return target
    finally:
        if made != target:
            shutil.rmtree(made, ignore_errors=True)


def _names(path: Path, count: int) -> Iterator[pa.Array]:
    """Yield the names of a partition, some at a time."""
    found = 0
    for names in stream_names(path):
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
                shutil.rmtree(path, ignore_errors=True)
