"""The one seam between this package and bytes: what every store must do.

Data objects are written once (``put_new``); the few pointers that change do so by ``swap`` (compare-and-swap on the
version tag). Nothing above this room knows whether bytes lie on a disk or in S3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PosixPath
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store knows of one object.

    Attributes:
        key: ``/``-separated name below the store's root.
        size: bytes.
        tag: the store's version tag (ETag): an object whose bytes changed has another one. It tells versions of one
            key apart, never objects of two keys. In S3 it is a hash of the bytes: two writes of equal bytes share it.
        metadata: small string pairs written with the object.
        modified: when it was written, in seconds since 1970 by the store's clock, as ``head``, ``get`` and ``list``
            tell it (S3 to the second); None in a write's answer.
    """

    key: str
    size: int
    tag: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    modified: float | None = field(default=None, compare=False)


class FinalFile(PosixPath):
    """A file that nobody writes into any more: as a source, a store may keep the file itself instead of a copy."""


@dataclass(frozen=True, slots=True)
class Blob:
    """An object's bytes with what the store knew of it when they were read."""

    info: ObjectInfo
    data: bytes


@runtime_checkable
class Store(Protocol):
    """Objects below one root. Keys are relative to it and never hold ``..``, a leading ``/`` or an empty segment.

    A swap expects a tag. In a local store every write has a tag of its own. In S3 a tag stands for bytes, not for a
    write: an object that was replaced and then got its earlier bytes back passes for one that never changed. So a
    document that is swapped holds what no other write of it does: ``checkpoint.manifest.encode_unique`` puts it there.

    Every method raises ``StorageError`` (or its ``AccessError``) when the store fails or refuses, within a bounded
    time, naming the object's URL; ``ConfigError`` for a key or metadata that not every store can hold (``names``) and
    for a bucket that does not exist.
    """

    @property
    def url(self) -> str:
        """The root: ``s3://bucket/prefix`` or an absolute directory path, without a trailing slash."""
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """Look an object up, with its metadata; None when it does not exist."""
        ...

    def get(self, key: str) -> Blob:
        """Read a small object whole.

        Raises:
            NotFoundError: it does not exist.
        """
        ...

    def fetch(self, key: str, target: Path) -> ObjectInfo:
        """Download an object to a local file, in parallel ranges of one version; the file appears only when whole.

        Raises:
            NotFoundError: it does not exist.
            ResourceError: no room left on the local disk.
        """
        ...

    def put_new(self, key: str, source: bytes | Path, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        """Create an object that must not exist yet (a ``Path`` is uploaded in parts, visible only when whole).

        Safe under retry: a write whose answer was lost is recognised as ours and succeeds. That holds within one call;
        a second call is another writer.

        Raises:
            ConflictError: another writer created it.
        """
        ...

    def swap(
        self, key: str, source: bytes | Path, *, expected: ObjectInfo | None, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        """Replace an object if it still is the version ``expected`` (None: it must not exist).

        Raises:
            ConflictError: it is another version, or gone.
        """
        ...

    def put(self, key: str, source: bytes | Path, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        """Write over whatever is there; never what decides between two writers, which takes ``put_new`` or ``swap``.

        That is for marks whose date counts, heartbeats, pages, what is kept for people and for PBG's readers, and files
        of a directory whose one writer holds a claim.
        """
        ...

    def copy(self, source: str, target: str) -> ObjectInfo:
        """Copy within the store without moving bytes through this process; ``target`` must not exist yet.

        Metadata is kept. Copying again what is already there with equal bytes succeeds.

        Raises:
            NotFoundError: ``source`` does not exist.
            ConflictError: ``target`` exists with other bytes.
        """
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Walk the objects whose key starts with ``prefix``, in key order, without metadata."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; removing one that does not exist is no error."""
        ...

    def abort_uploads(self, prefix: str, *, before: float, dry_run: bool = False) -> int:
        """Give up uploads in parts that never ended: their parts are no object, in no list, and take up room.

        Args:
            prefix: of the keys of the objects they would have become.
            before: those go that began before, in seconds since 1970 by the store's clock.
            dry_run: only count them.

        Returns:
            How many.
        """
        ...


@runtime_checkable
class DirectoryStore(Protocol):
    """A store without a server: objects are dated by the machines that write them, and what they leave stays."""

    def remove_orphans(self, *, before: float, dry_run: bool = False) -> int:
        """Remove files of the store's own that no object has any more, as after a writer was killed.

        Args:
            before: those go that were written before, in seconds since 1970.
            dry_run: only count them.

        Returns:
            How many.
        """
        ...


@runtime_checkable
class RangedStore(Protocol):
    """A store that gives parts of its objects; those of a local one are files."""

    def get_range(self, info: ObjectInfo, start: int, stop: int) -> bytes:
        """Read bytes ``start`` to ``stop`` of the version ``info``, as far as it has any.

        Raises:
            NotFoundError: the object does not exist any more.
            StorageError: it was changed.
        """
        ...
