"""An iteration under way: what of it is stored, so that a gang that lost a rank goes on at the bucket.

Between two versions HEAD.json names a progress record. It says which buckets are trained and stored, where each
partition lies since, and which buckets were under way. Its objects lie below ``partial/`` under names that are used
once: nobody who was shut out can change what a record names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field

from pbg_tasks.checkpoint.manifest import Iteration, NamedRecord, ObjectRecord
from pbg_tasks.checkpoint.reader import SHA256, WRITER_EPOCH, VerifiedFiles
from pbg_tasks.config.base import Frozen
from pbg_tasks.storage.names import join
from pbg_tasks.storage.staging import sha256_file

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.storage import Store

PARTIAL, RECORDS = "partial", "progress.v"
"""How the names of objects and of records begin."""
Natural = Annotated[int, Field(ge=0)]


class StoredObject(Frozen):
    """An object of a checkpoint directory, and the lease whose training it holds.

    Attributes:
        name: below the directory.
        record: its bytes.
        lease: the last that trained it; 0: none did.
    """

    name: str
    record: ObjectRecord
    lease: Natural = 0


class EdgeChunkRecord(Frozen):
    """A bucket's chunk, trained to its end or to some batch.

    Attributes:
        lhs: partition of the bucket.
        rhs: same.
        rank: that trained it last.
        lease: under which it was.
        edges: trained.
        held_out: edges held out of it.
        batches: trained; with the same seed they are the first.
        drawn: state of the generator after them, in base64, where one worker alone drew from it.
        figures: loss, penalty and violators of both sides, means over ``edges``.
        before: figures of the held-out edges before, and ``after``.
        seconds: training took.
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
    """A bucket that a rank was training when a record was made."""

    lhs: Natural
    rhs: Natural
    rank: Natural
    lease: Natural


class PartialRecord(Frozen):
    """What of an iteration is stored.

    Attributes:
        spec: hash of what is trained.
        writer_epoch: who wrote the record.
        number: counts the records of a writer.
        iteration: under way.
        lease: the highest number that was given to a lease.
        done: pieces trained to their end, whose partitions are stored; as it is stored, those in no segment yet.
        sealed: segments (``segments``) with the others, as it is stored.
        begun: pieces stopped before their end, whose partitions are stored.
        active: pieces under way: what of them is not stored is trained again.
        partitions: every partition trained in this iteration, by PBG's file name.
        shared: shared parameters and partitions of types that have one, by PBG's file name.
        retrained: edges that were, or may have been, trained and not stored, and so were trained again.
        last: rank, lhs and rhs of the bucket that each rank reported last.
        order: hash of what decided the order of edges within a piece: with another, ``begun`` cannot be gone on with.
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
        """What a version is made of, by PBG's file name."""
        return {**self.partitions, **self.shared}

    @property
    def names(self) -> set[str]:
        """The objects that the record needs."""
        return {*(stored.name for stored in self.objects.values()), *(segment.name for segment in self.sealed)}


def progress_name(version: int, writer_epoch: int, number: int) -> str:
    """Return the file name of a record."""
    return f"{RECORDS}{version}.e{writer_epoch}.{number}.json"


def epoch_of(name: str) -> int:
    """Return the writer epoch in the name of an object or record; 0 where there is none."""
    found = re.match(rf"(?:{PARTIAL}/|{re.escape(RECORDS)}\d+\.)e(\d+)", name)
    return int(found[1]) if found else 0


class PartialObjects(NamedTuple):
    """Where the ranks of one gang store what a version will be made of.

    Attributes:
        store: of the checkpoint directory.
        prefix: its key.
        writer_epoch: of the gang.
    """

    store: Store
    prefix: str
    writer_epoch: int

    def put(self, path: Path, folder: str, *, lease: int = 0) -> StoredObject:
        """Store a file under a name that nobody else uses.

        Args:
            path: the file.
            folder: below the gang's; used once.
            lease: the last whose training the file holds.

        Raises:
            StorageError: the store failed.
            ConflictError: the name is taken: two hold one lease.
        """
        name = f"{PARTIAL}/e{self.writer_epoch}/{folder}/{path.name}"
        record = ObjectRecord(sha256=sha256_file(path), size=path.stat().st_size)
        metadata = {WRITER_EPOCH: str(self.writer_epoch), SHA256: record.sha256}
        self.store.put_new(join(self.prefix, name), path, metadata=metadata)
        return StoredObject(name=name, record=record, lease=lease)

    def fetch(self, stored: StoredObject, directory: Path) -> Path:
        """Download an object that any rank stored, or that belongs to a version, and verify it."""
        files = VerifiedFiles(self.store, self.prefix, 0, {stored.name: stored.record})
        return files.fetch(stored.name, directory)
