"""Protocol of stores, the one seam between this package and bytes.

Data objects are written once (``put_new``); the few pointers that change do so by ``swap`` (compare-and-swap on the
version tag). Code above this room does not depend on whether bytes are stored on a disk or in S3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PosixPath
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Facts about one object, as its store has them.

    Attributes:
        key: ``/``-separated name below the store's root.
        size: bytes.
        tag: version tag of the store (ETag): an object whose bytes changed has another one. Tags distinguish versions
            of one key, never objects of two keys. In S3 the tag is a hash of the bytes, so two writes of equal bytes
            share it.
        metadata: small string pairs written with the object.
        modified: time of the write, in seconds since 1970 by the store's clock, from ``head``, ``get`` and ``list``
            (in S3 to the second); None in the answer to a write. A copy in a directory has that of the original.
    """

    key: str
    size: int
    tag: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    modified: float | None = field(default=None, compare=False)


class FinalFile(PosixPath):
    """Complete file, which is not changed any more.

    A store may keep the file itself, not a copy of it; and where it is the target of a fetch, may give its own.
    """


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes of an object, with its facts at the time of reading."""

    info: ObjectInfo
    data: bytes


@runtime_checkable
class Store(Protocol):
    """Objects below one root.

    Keys are relative to the root and never contain ``..``, a leading ``/`` or an empty segment.

    A swap expects a tag. In a local store every write but a copy has a tag of its own. In S3 a tag stands for bytes,
    not for a write: an object that was replaced and then got its earlier bytes back passes for one that never changed.
    So a document that is swapped contains a random number that no other write of it has
    (``checkpoint.manifest.encode_unique``).

    Every method raises ``StorageError`` (or its ``AccessError``) when the store fails or refuses, within a bounded
    time, naming the object's URL; ``ConfigError`` for a key or metadata that not every store can hold (``names``) and
    for a bucket that does not exist.
    """

    @property
    def url(self) -> str:
        """URL of the root, without a trailing slash.

        It is ``s3://bucket/prefix`` or the absolute path of a directory.
        """
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """Return an object's facts with metadata; None without the object."""
        ...

    def get(self, key: str) -> Blob:
        """Read a small object as a whole.

        Raises:
            NotFoundError: it does not exist.
        """
        ...

    def fetch(self, key: str, target: Path) -> ObjectInfo:
        """Download an object to a local file, which appears only when complete.

        The download takes parallel ranges of one version of the object. It is a copy, which is not flushed: a failure
        of power may take it.

        Raises:
            NotFoundError: it does not exist.
            ResourceError: no room left on the local disk.
        """
        ...

    def put_new(self, key: str, source: bytes | Path, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        """Create an object that must not exist yet.

        A ``Path`` is uploaded in parts, and the object is visible only when complete. The call is safe under retry: a
        write whose answer was lost is recognised as its own and succeeds. That holds within one call; a second call is
        another writer.

        Raises:
            ConflictError: another writer created it.
        """
        ...

    def swap(
        self, key: str, source: bytes | Path, *, expected: ObjectInfo | None, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        """Replace an object if it still is the version ``expected``.

        With ``expected`` None, the object must not exist.

        Raises:
            ConflictError: it is another version, or gone.
        """
        ...

    def put(self, key: str, source: bytes | Path, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        """Write an object without a condition, over any object with its key.

        Use it for marks whose date counts, heartbeats, pages, files for people and for PBG's readers, and files of a
        directory whose one writer holds a claim. An object that decides between two writers takes ``put_new`` or
        ``swap``.
        """
        ...

    def copy(self, source: str, target: str) -> ObjectInfo:
        """Copy an object to a key that must not exist yet.

        The bytes do not pass through this process, and metadata is kept. A second copy of equal bytes succeeds.

        Raises:
            NotFoundError: ``source`` does not exist.
            ConflictError: ``target`` exists with other bytes.
        """
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Walk objects by a prefix of keys, in key order, without metadata."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        ...

    def abort_uploads(self, prefix: str, *, before: float, dry_run: bool = False) -> int:
        """Abort uploads in parts that never ended.

        Their parts are no objects and appear in no list, but they take up room.

        Args:
            prefix: of the keys of the objects that they would have become.
            before: uploads that began before this time are aborted, in seconds since 1970 by the store's clock.
            dry_run: only count them.

        Returns:
            Number of uploads.
        """
        ...


@runtime_checkable
class DirectoryStore(Protocol):
    """Store without a server.

    Objects are dated by the machines that write them. Files that a killed writer left stay until they are removed.
    """

    def remove_orphans(self, *, old: Callable[[Sequence[ObjectInfo]], bool], dry_run: bool = False) -> int:
        """Remove files of the store's own that have no object.

        A killed writer leaves such files.

        Args:
            old: decides whether a file may go, by its name, size and date; one that a writer needs is young.
            dry_run: only count them.

        Returns:
            Number of files.
        """
        ...


@runtime_checkable
class RangedStore(Protocol):
    """Store that reads parts of objects."""

    def get_range(self, info: ObjectInfo, start: int, stop: int) -> bytes:
        """Read a range of bytes of a version, where they exist.

        Args:
            info: the version.
            start: first byte.
            stop: byte after the last.

        Raises:
            NotFoundError: the object does not exist any more.
            StorageError: it was changed; the message has this word and the object's name.
        """
        ...
