"""Progress record of an iteration under way, from which a gang resumes.

A gang that lost a rank resumes with the current bucket, not with the iteration. Between two versions HEAD.json names a
progress record. The record lists the buckets that are trained and stored, the object with the newest state of each
partition, and the buckets that were under way. Its objects are below ``partial/`` under names that are used once: a
writer that was shut out cannot change an object that a record names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field

from pbg_tasks.checkpoint.manifest import Iteration, NamedRecord, ObjectRecord, decode
from pbg_tasks.checkpoint.reader import HEAD, SHA256, WRITER_EPOCH, VerifiedFiles, location, read_head
from pbg_tasks.config.base import Frozen
from pbg_tasks.errors import FormatError, NotFoundError
from pbg_tasks.storage.names import join
from pbg_tasks.storage.staging import sha256_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pbg_tasks.storage import ObjectInfo, Store

PARTIAL, RECORDS = "partial", "progress.v"
"""Prefixes of the names of objects and of records."""
Natural = Annotated[int, Field(ge=0)]


class StoredObject(Frozen):
    """Object of a checkpoint directory, and the lease that trained it.

    Attributes:
        name: below the directory.
        record: its bytes.
        lease: the last lease that trained it; 0: none did.
    """

    name: str
    record: ObjectRecord
    lease: Natural = 0


class EdgeChunkRecord(Frozen):
    """Trained chunk of a bucket, to its end or to some batch.

    Attributes:
        lhs: partition of the bucket.
        rhs: same.
        rank: that trained it last.
        lease: under which the rank did so.
        edges: number of edges trained.
        held_out: number of edges held out of it.
        batches: number of batches trained; with the same seed they are the first ones.
        drawn: state of the generator after them, in base64, where only one worker drew from it.
        figures: loss, penalty and violators of both sides, means over ``edges``.
        before: figures of the held-out edges before training; ``after``: after it.
        seconds: that training took, and the ranking of held-out or valid edges.
    """

    lhs: Natural
    rhs: Natural
    rank: Natural
    lease: Natural
    edges: Natural
    held_out: Natural = 0
    batches: Natural = 0
    drawn: str = ""
    figures: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    before: dict[str, float] | None = None
    after: dict[str, float] | None = None
    seconds: float = 0.0


class LeaseRecord(Frozen):
    """Bucket that a rank was training when a record was made."""

    lhs: Natural
    rhs: Natural
    rank: Natural
    lease: Natural


class PartialRecord(Frozen):
    """Record of the stored part of an iteration.

    Attributes:
        spec: hash of the spec that is trained.
        writer_epoch: of the writer of the record.
        number: of the record among those of its writer.
        iteration: under way.
        lease: the highest number that was given to a lease.
        done: pieces trained to their end, whose partitions are stored; in the stored record, those that are in no
            segment yet.
        sealed: segments (``segments``) with the other such pieces, in the stored record.
        begun: pieces stopped before their end, whose partitions are stored.
        active: pieces under way; the part of them that is not stored is trained again.
        partitions: every partition trained in this iteration, by PBG's file name.
        shared: shared parameters and partitions of types that have one, by PBG's file name.
        retrained: number of edges that were, or may have been, trained and not stored, and so were trained again.
        last: rank, lhs and rhs of the bucket that each rank reported last.
        order: hash of all that determines the order of edges within a piece; if it differs, ``begun`` cannot be
            resumed.
    """

    format: Literal[1] = 1
    spec: str
    writer_epoch: int
    number: Natural
    iteration: Iteration
    lease: Natural
    done: tuple[EdgeChunkRecord, ...] = ()
    sealed: tuple[NamedRecord, ...] = ()
    begun: tuple[EdgeChunkRecord, ...] = ()
    active: tuple[LeaseRecord, ...] = ()
    partitions: dict[str, StoredObject] = Field(default_factory=dict)
    shared: dict[str, StoredObject] = Field(default_factory=dict)
    retrained: Natural = 0
    last: tuple[tuple[int, int, int], ...] = ()
    order: str = ""

    @property
    def objects(self) -> dict[str, StoredObject]:
        """Objects of the iteration's future version, by PBG's file name."""
        return {**self.partitions, **self.shared}

    @property
    def names(self) -> set[str]:
        """Names of the objects that the record needs."""
        return {*(stored.name for stored in self.objects.values()), *(segment.name for segment in self.sealed)}


def progress_name(version: int, writer_epoch: int, number: int) -> str:
    """Return the file name of a record."""
    return f"{RECORDS}{version}.e{writer_epoch}.{number}.json"


def epoch_of(name: str) -> int:
    """Return the writer epoch in the name of an object or record.

    It is 0 where the name has none.
    """
    found = re.match(rf"(?:{PARTIAL}/|{re.escape(RECORDS)}\d+\.)e(\d+)", name)
    return int(found[1]) if found else 0


class PartialObjects(NamedTuple):
    """Place where a gang's ranks store objects of the next version.

    Attributes:
        store: of the checkpoint directory.
        prefix: its key.
        writer_epoch: of the gang.
    """

    store: Store
    prefix: str
    writer_epoch: int

    def put(self, path: Path, folder: str, *, lease: int = 0) -> StoredObject:
        """Store a file under a name that no other writer uses.

        Args:
            path: the file.
            folder: below the gang's; used once.
            lease: the last lease whose training the file holds.

        Raises:
            StorageError: the store failed.
            ConflictError: the name is taken: two ranks hold one lease.
        """
        name = f"{PARTIAL}/e{self.writer_epoch}/{folder}/{path.name}"
        record = ObjectRecord(sha256=sha256_file(path), size=path.stat().st_size)
        metadata = {WRITER_EPOCH: str(self.writer_epoch), SHA256: record.sha256}
        self.store.put_new(join(self.prefix, name), path, metadata=metadata)
        return StoredObject(name=name, record=record, lease=lease)

    def fetch(self, stored: StoredObject, directory: Path) -> Path:
        """Download and verify an object of any rank or of a version."""
        files = VerifiedFiles(self.store, self.prefix, 0, {stored.name: stored.record})
        return files.fetch(stored.name, directory)


def unneeded_objects(store: Store, prefix: str, infos: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """Return those of ``infos`` that HEAD.json does not need.

    Gangs that were lost left them.

    Args:
        store: of the checkpoint directory.
        prefix: its key.
        infos: objects below it, listed before this call. Objects of a record that is not stored yet are returned too,
            so the caller may remove only old ones.

    Raises:
        FormatError: HEAD.json or the record it names is damaged, or the record is missing.
    """
    passing = [info for info in infos if info.key.startswith((join(prefix, f"{PARTIAL}/"), join(prefix, RECORDS)))]
    if not passing:
        return []
    named = {join(prefix, name) for name in _named(store, prefix)}
    return [info for info in passing if info.key not in named]


def _named(store: Store, prefix: str) -> set[str]:
    """Return the record in HEAD.json and the objects that the record names.

    A gang at work may replace the record between the two reads: then HEAD.json names the next.
    """
    missing = None
    while (head := read_head(store, prefix)[0]) is not None and head.progress is not None:
        name = head.progress.name
        source = location(store, prefix, name)
        try:
            data = store.get(join(prefix, name)).data
        except NotFoundError:
            if name == missing:  # it was not replaced, so the objects that it named are unknown
                raise FormatError(f"{source}: missing, although {HEAD} names it; restore it") from None
            missing = name
        else:
            return {name, *decode(PartialRecord, data, source=source).names}
    return set()
