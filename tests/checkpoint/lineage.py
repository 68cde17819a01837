"""Writers of one checkpoint directory, checked after each of their operations."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import Head, Manifest, PartialRecord, claim
from pbg_tasks.checkpoint.manifest import decode, sha256
from pbg_tasks.checkpoint.reader import HEAD, manifest_name
from pbg_tasks.errors import ConflictError, PbgError
from tests.checkpoint.samples import PREFIX, SPEC, iteration

if TYPE_CHECKING:
    from pbg_tasks.checkpoint import CheckpointWriter, Names, ObjectRecord
    from pbg_tasks.storage import LocalStore, Store
    from tests.checkpoint.paused import PausedWriter


def names(version: int) -> list[str]:
    """Return the files of a version."""
    return [f"embeddings_all_0.v{version}.h5", f"model.v{version}.h5"]


def train(store: Store, *, folder: Path, gang: bool, epochs: int = 1, adopt: Names | None = None) -> None:
    """Commit versions as a training does, of bytes unique to it.

    Args:
        store: of the checkpoint directory.
        folder: of this writer alone.
        gang: whether several ranks train: parts are stored and recorded one after the other, then made a version.
        epochs: versions that are committed.
        adopt: as ``claim`` takes it.
    """
    folder.mkdir(parents=True)
    with claim(store, PREFIX, SPEC, adopt=adopt, patience=0) as writer:
        gang = gang or writer.progress is not None  # which continues from the records of another gang
        if gang:
            writer.sweep()
        for number in range(writer.version + 1, writer.version + 1 + epochs):
            before = writer.manifest
            objects = _by_a_gang(writer, number, folder) if gang else _alone(writer, number, folder)
            writer.commit(objects, iteration=iteration(number), edges=10)
            if before is not None:
                writer.drop(before)


def _alone(writer: CheckpointWriter, number: int, folder: Path) -> dict[str, ObjectRecord]:
    return {name: writer.put(name, f"{folder.name} {name}".encode()) for name in names(number)}


def _by_a_gang(writer: CheckpointWriter, number: int, folder: Path) -> dict[str, ObjectRecord]:
    stored = dict(writer.progress.partitions) if writer.progress else {}
    left = [name for name in names(number) if name not in stored or name.startswith("model")]
    for lease, name in enumerate(left, start=1):
        path = folder / name
        path.write_text(f"{folder.name} {name}")
        stored[name] = writer.partial.put(path, f"{number}.{lease}", lease=lease)
        progress = PartialRecord(
            spec=SPEC,
            writer_epoch=writer.partial.writer_epoch,
            number=lease,
            iteration=iteration(number),
            lease=lease,
            partitions=dict(stored),
        )
        writer.record(progress)
    return writer.settle(progress)


class Lineage:
    """Versions that HEAD.json has named, and their bytes that are still there.

    Attributes:
        head: HEAD.json after the last operation.
        owner: the writer that claimed last.
        seen: number of times each event happened.
    """

    def __init__(self, store: LocalStore) -> None:
        self._directory = Path(store.url) / PREFIX
        self._committed: dict[tuple[int, str], bytes] = {}
        self.head: Head | None = None
        self.owner: PausedWriter | None = None
        self.seen: Counter[str] = Counter()

    def step(self, writer: PausedWriter) -> bool:
        """Let a writer do one operation, and check what that changed.

        Returns whether it goes on.
        """
        writer.step()
        found = self._read(HEAD)
        head = None if found is None else decode(Head, found, source=HEAD)
        if head != self.head:
            self._moved(writer, self.head or Head(writer_epoch=0), head)
            self.head = head
        self._compare()
        if writer.next is None:
            self._ended(writer)
        return writer.next is not None

    def _moved(self, writer: PausedWriter, before: Head, head: Head) -> None:
        """Check one change of HEAD.json: a claim, a record, or a commit."""
        if head.writer_epoch != before.writer_epoch:
            claimed = before.model_copy(update={"writer_epoch": before.writer_epoch + 1})
            assert head == claimed, "a claim changed more than the writer epoch"
            self.seen["taken over"] += self.owner is not None and self.owner.next is not None
            self.owner = writer
            return
        assert writer is self.owner, "a writer that was superseded moved HEAD.json"
        if head.progress is not None:
            assert head == before.model_copy(update={"progress": head.progress}), "a record changed more than progress"
            return
        manifest = decode(Manifest, self._read(manifest_name(head.version)), source=HEAD)
        assert (manifest.version, manifest.parent) == (before.version + 1, before.manifest_sha256)
        assert (manifest.writer_epoch, manifest.edges) == (before.writer_epoch, (10,) * manifest.version)
        self._committed[head.version, manifest_name(head.version)] = self._read(manifest_name(head.version))
        self._committed |= {(head.version, name): self._read(name) for name in manifest.objects}
        committed = {name: sha256(data) for (version, name), data in self._committed.items() if version == head.version}
        records = {name: record.sha256 for name, record in manifest.objects.items()}
        assert committed == {manifest_name(head.version): head.manifest_sha256, **records}
        self.seen["committed"] += 1

    def _compare(self) -> None:
        """Check that committed files are unchanged and the newest version is complete."""
        for (version, name), data in list(self._committed.items()):
            there = self._read(name)
            if there is None:
                assert version < self.head.version, f"{name} is gone, and its version is the newest"
                del self._committed[version, name]  # another file under that name belongs to no version
            else:
                assert there == data, f"{name} has other bytes than were committed"

    def _ended(self, writer: PausedWriter) -> None:
        """Raise the error that ended a writer, unless it was fenced.

        A fenced writer may stop the owner, by replacing a leftover at the very moment at which the owner would.
        """
        if writer.error is None:
            return
        if not isinstance(writer.error, ConflictError if writer is self.owner else PbgError):
            raise writer.error
        self.seen["shut out"] += writer is not self.owner

    def _read(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None
