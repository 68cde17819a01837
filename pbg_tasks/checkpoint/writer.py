"""Writer of a run's versions: claim, write, and commit by one swap.

The checkpoint directory is PBG's own: ``embeddings_{type}_{p}.v{N}.h5`` and ``model.v{N}.h5`` are data objects, created
once by one writer epoch; ``manifest.v{N}.json`` and ``HEAD.json`` are beside them. A takeover raises the writer epoch
in HEAD.json, so the earlier writer loses at its next commit, whatever its clock shows. A directory that PBG wrote, or
continued after this package, may be adopted: HEAD.json then names PBG's version, for which there is no manifest.

The file is longer than others so that the order of writes, on which recovery after a crash depends, is in one place.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint.best import best_before, superseded
from pbg_tasks.checkpoint.manifest import (
    Head,
    Iteration,
    Manifest,
    NamedRecord,
    ObjectRecord,
    decode,
    encode,
    encode_unique,
    sha256,
)
from pbg_tasks.checkpoint.partial_record import PARTIAL, RECORDS, PartialObjects, PartialRecord, epoch_of, progress_name
from pbg_tasks.checkpoint.plain import Newest, is_followed, newest, outdated_files
from pbg_tasks.checkpoint.preserve import MANIFEST
from pbg_tasks.checkpoint.reader import (
    HEAD,
    SHA256,
    VERSION_MIRROR,
    WRITER_EPOCH,
    VerifiedFiles,
    location,
    manifest_name,
    read_head,
    read_manifest,
    read_mirror,
)
from pbg_tasks.checkpoint.segments import Segments, read_progress
from pbg_tasks.checkpoint.writer_heartbeat import PATIENCE_SECONDS, WriterHeartbeat, wait_until_free
from pbg_tasks.errors import ConfigError, ConflictError, FormatError, NotFoundError, OvertakenError, StorageError
from pbg_tasks.storage.names import join
from pbg_tasks.storage.staging import Scratch, sha256_file
from pbg_tasks.storage.uploads import end_old_uploads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pbg_tasks.checkpoint.contents import Names
    from pbg_tasks.checkpoint.reader import CheckpointFiles
    from pbg_tasks.storage import ObjectInfo, Store

LEASE = "lease.json"


class CheckpointWriter:
    """The one writer that may commit to a checkpoint directory.

    It may do so until another writer claims the directory.

    Attributes:
        manifest: the newest committed version; None when there is none, or when PBG wrote the newest.
        files: those of the newest version, for which ``names`` may be empty.
        progress: record of the stored part of the iteration after it; None when no gang has begun one.
        resumed_from: number of iterations that earlier writers had committed when this writer began, 0 within the first
            one; None when it began without any.
        alternates: whether PBG may write to the directory, too.
    """

    files: CheckpointFiles
    alternates = False

    def __init__(
        self, store: Store, prefix: str, spec: str, head: Head, info: ObjectInfo, found: Newest, outdated: list[str]
    ) -> None:
        self.store, self.prefix = store, prefix
        self.spec = spec
        self.manifest, self.files = found.manifest, found.files
        self._head, self._info = head, info
        self._unanswered: set[bytes] = set()  # contents of HEAD.json whose swap ended without an answer
        self._outdated = outdated
        self._segments = Segments(self.put, head.writer_epoch)
        self.progress = _unfinished(store, prefix, head, spec)
        self.resumed_from = head.version if head.version or self.progress is not None else None

    @property
    def partial(self) -> PartialObjects:
        """Place where ranks store the objects of the next version."""
        return PartialObjects(self.store, self.prefix, self._head.writer_epoch)

    @property
    def version(self) -> int:
        """Number of committed iterations."""
        return self._head.version

    def key(self, name: str) -> str:
        """Return the store's key of a file in this directory."""
        return join(self.prefix, name)

    def put(self, name: str, source: bytes | Path) -> ObjectRecord:
        """Write an object of the next version.

        It replaces a leftover of an older writer epoch.

        Raises:
            ConflictError: a newer writer wrote it: this one has been taken over.
        """
        if isinstance(source, bytes):
            record = ObjectRecord(sha256=sha256(source), size=len(source))
        else:
            record = ObjectRecord(sha256=sha256_file(source), size=source.stat().st_size)
        key, metadata = self.key(name), {WRITER_EPOCH: str(self._head.writer_epoch), SHA256: record.sha256}
        try:
            self.store.put_new(key, source, metadata=metadata)
        except ConflictError:
            there = self.store.head(key)
            if there is not None and self._is_mine(there, record):
                return record
            self._refuse_newer(key, there)
            self._replace(there, key, source, record)
        return record

    def _replace(self, there: ObjectInfo | None, key: str, source: bytes | Path, record: ObjectRecord) -> None:
        """Replace a leftover, unless a newer writer has replaced it since."""
        # A file has PBG's format and a hash that a replay compares, so it cannot hold a nonce. In S3 this swap
        # therefore also passes where a newer writer has meanwhile stored the very bytes of the leftover. That is
        # harmless: the leftover, the newer file and this one were made of one spec and one earlier version. A file
        # whose content does not depend on timing is equal in all three, and a file that does depend on it is never
        # stored twice with equal bytes. Manifests and records name their writer epoch. Should another processor have
        # rounded differently, readers refuse the file by its hash.
        metadata = {WRITER_EPOCH: str(self._head.writer_epoch), SHA256: record.sha256}
        self.store.swap(key, source, expected=there, metadata=metadata)

    def _is_mine(self, there: ObjectInfo, record: ObjectRecord) -> bool:
        epoch = there.metadata.get(WRITER_EPOCH)
        return epoch == str(self._head.writer_epoch) and there.metadata.get(SHA256) == record.sha256

    def _refuse_newer(self, key: str, there: ObjectInfo | None) -> None:
        epoch = int(there.metadata.get(WRITER_EPOCH, "0")) if there else 0
        if epoch > self._head.writer_epoch:
            raise ConflictError(
                f"{self.store.url}/{key}: written by writer epoch {epoch}, this is {self._head.writer_epoch}: "
                "another writer took this run over"
            )

    def check_claim(self) -> None:
        """Look whether this writer may still store what has no version.

        Raises:
            ConflictError: another writer has claimed the directory.
        """
        head, _ = read_head(self.store, self.prefix)
        if head is not None and head.writer_epoch > self._head.writer_epoch:
            raise ConflictError(
                f"{self.store.url}/{self.key(HEAD)}: another writer claimed this run, as writer epoch "
                f"{head.writer_epoch}; this is {self._head.writer_epoch}, whose next version does not count"
            )

    def record(self, progress: PartialRecord) -> None:
        """Make the stored part of an iteration count.

        Write its record, then swap HEAD.json.

        Raises:
            ConflictError: another writer has claimed the run, so no write of this one counts.
        """
        shortened = self._segments.seal(progress)
        before, data = self._head.progress, encode(shortened)
        name = progress_name(progress.iteration.number, progress.writer_epoch, progress.number)
        self.put(name, data)
        self._swap({"progress": NamedRecord(name=name, sha256=sha256(data))}, what=f"record {progress.number}")
        for outdated in self.progress.names - shortened.names if self.progress else ():
            self.store.delete(self.key(outdated))
        self.progress = progress.model_copy(update={"sealed": shortened.sealed})
        if before is not None:
            self.store.delete(self.key(before.name))

    def settle(self, progress: PartialRecord) -> dict[str, ObjectRecord]:
        """Give the objects of a finished iteration the names of a version.

        Returns:
            Their records by name.

        Raises:
            ConflictError: a newer writer wrote one of them.
        """
        for name, stored in progress.objects.items():
            key = self.key(name)
            there = self.store.head(key)
            if there is None:
                self.store.copy(self.key(stored.name), key)
            elif there.metadata.get(SHA256) != stored.record.sha256:  # else it was settled before
                self._refuse_newer(key, there)
                with Scratch() as scratch:
                    self._replace(there, key, self.partial.fetch(stored, scratch.path), stored.record)
        return {name: stored.record for name, stored in progress.objects.items()}

    def sweep(self) -> None:
        """Delete objects that ranks stored and no record names.

        A lost gang left them, or a version has them now under its own names. Objects of a newer writer stay: a writer
        that was shut out may call this before it notices.
        """
        kept = set(self.progress.names) if self.progress else set()
        if self._head.progress:
            kept.add(self._head.progress.name)
        start = len(self.key("x")) - 1
        for prefix in (f"{PARTIAL}/", RECORDS):
            for info in list(self.store.list(self.key(prefix))):
                name = info.key[start:]
                if name not in kept and epoch_of(name) <= self._head.writer_epoch:
                    self.store.delete(info.key)

    def commit(
        self,
        objects: dict[str, ObjectRecord],
        *,
        iteration: Iteration | None,
        edges: int,
        retrained: int = 0,
        valid: float | None = None,
    ) -> Manifest:
        """Make a version count: write its manifest, then swap HEAD.json.

        Args:
            objects: every object of the version, as ``put`` returned them.
            iteration: the one just finished; None commits a version 0 (nothing trained).
            edges: number of edges it trained.
            retrained: number of them that may have been trained before, by ranks that were lost.
            valid: MRR of the sample of valid edges, where the iteration ends an epoch and early stopping is on.

        Raises:
            ConflictError: another writer has claimed the run, so no write of this one counts.
        """
        version = iteration.number if iteration else 0
        figures = (*(self.manifest.valid if self.manifest else ()), *(() if valid is None else (valid,)))
        manifest = Manifest(
            spec=self.spec,
            writer_epoch=self._head.writer_epoch,
            version=version,
            parent=self._head.manifest_sha256,
            iteration=iteration,
            edges=(*(self.manifest.edges if self.manifest else ()), *((edges,) if iteration else ())),
            retrained=self._retrained(retrained) if iteration else (),
            valid=figures,
            best=best_before(iteration, figures, self.manifest, self._head.manifest_sha256),
            objects=objects,
        )
        data = encode(manifest)
        self.put(manifest_name(version), data)
        update = {"version": version, "manifest_sha256": sha256(data), "progress": None}
        self._swap(update, what=f"version {version}")
        begun, self.manifest = self.progress, manifest
        self.progress = None
        self.files = VerifiedFiles(self.store, self.prefix, version, objects)
        self.write_mirror()
        for name in self._outdated:
            self.store.delete(self.key(name))
        self._outdated = []
        if begun is not None:
            self.sweep()
        return manifest

    def _retrained(self, edges: int) -> tuple[int, ...]:
        """Return the ledger's second column with one more iteration.

        It stays empty as long as all its numbers are 0.
        """
        if self.manifest is None:
            return (edges,) if edges else ()
        column = [*self.manifest.retrained, *[0] * (len(self.manifest.edges) - len(self.manifest.retrained)), edges]
        return tuple(column) if any(column) else ()

    def _swap(self, update: dict[str, object], *, what: str) -> None:
        head = self._head.model_copy(update=update)
        data = encode_unique(head)
        try:
            self._info = self._replace_head(data)
        except ConflictError as error:
            verdict = "counts only if it is named there" if isinstance(error, OvertakenError) else "does not count"
            raise ConflictError(
                f"{self.store.url}/{self.key(HEAD)}: another writer claimed this run; {what} of "
                f"writer epoch {self._head.writer_epoch} {verdict}"
            ) from None
        except StorageError:
            if head.version == self._head.version:  # a version that may count is never taken back
                self._unanswered.add(data)
            raise
        self._head = head
        self._unanswered.clear()

    def _replace_head(self, data: bytes) -> ObjectInfo:
        """Swap HEAD.json, also where this writer's last swap had no answer."""
        try:
            return self.store.swap(self.key(HEAD), data, expected=self._info)
        except ConflictError:
            there = self.store.get(self.key(HEAD)) if self._unanswered else None
            if there is None or there.data not in self._unanswered:  # they are unique
                raise
        return self.store.swap(self.key(HEAD), data, expected=there.info)

    def write_mirror(self) -> None:
        """Write the version that counts for PBG."""
        self.store.put(self.key(VERSION_MIRROR), f"{self.version}\n".encode())

    def drop(self, manifest: Manifest) -> None:
        """Delete versions that are neither the newest nor the best.

        Version 0 is kept, as in PBG.

        Args:
            manifest: of the version before the newest.
        """
        for each in superseded(self.store, self.prefix, manifest, self.manifest):
            if 0 < each.version < self.version:
                for name in each.objects:
                    self.store.delete(self.key(name))
                # Last, because `catch_up` finds the objects by it.
                self.store.delete(self.key(manifest_name(each.version)))

    def catch_up(self) -> None:
        """Complete the steps that follow a commit.

        The process that made the newest version may have been killed before it took them.
        """
        mirrored = None
        with suppress(FormatError):  # a damaged one is replaced, as it would be at the next commit
            mirrored = read_mirror(self.store, self.prefix)
        if mirrored is None or mirrored < self.version:  # it is ahead only where it was edited by hand
            self.write_mirror()
        before = self._before()
        if before is not None and all(self._is_as_committed(*each) for each in before.objects.items()):
            self.drop(before)
        if self._head.progress is None:
            self.sweep()

    def _before(self) -> Manifest | None:
        """Return the version before the newest, if it was not wholly dropped."""
        name = manifest_name(self.version - 1)
        with suppress(NotFoundError):
            data = self.store.get(self.key(name)).data
            if self.manifest is not None and sha256(data) == self.manifest.parent:
                return decode(Manifest, data, source=location(self.store, self.prefix, name))
        return None

    def _is_as_committed(self, name: str, record: ObjectRecord) -> bool:
        """Return whether an object is as its version named it, or gone.

        PBG may have made that version anew since.
        """
        there = self.store.head(self.key(name))
        return there is None or there.metadata.get(SHA256) == record.sha256


@contextmanager
def claim(
    store: Store, prefix: str, spec: str, *, adopt: Names | None = None, patience: float = PATIENCE_SECONDS
) -> Iterator[CheckpointWriter]:
    """Become the writer of a checkpoint directory while the context lasts.

    Args:
        store: of the directory.
        prefix: its key, empty for the store's root.
        spec: hash of the spec that is trained; a directory trained with another one is refused.
        adopt: the files of a version (``checkpoint_names``), to take over a directory that PBG wrote or continued: the
            writer is then at PBG's version, without a manifest, and the next commit removes PBG's files as PBG would.
            None takes only versions that this package committed.
        patience: seconds a silent lease is watched before it is taken over.

    Yields:
        The writer.

    Raises:
        ConflictError: another writer is alive, or claimed at the same moment.
        ConfigError: the directory belongs to another spec, or is a preserved snapshot.
        FormatError: the directory is damaged.
    """
    lease = join(prefix, LEASE)
    wait_until_free(store, lease, patience=patience)
    head, info = read_head(store, prefix)
    if head is not None:  # first shut the earlier writer out, then look at what it left
        head = head.model_copy(update={"writer_epoch": head.writer_epoch + 1})
        info = _swap_head(store, prefix, head, info)
    found = _committed(store, prefix, head) if adopt is None else _adoptable(store, prefix, head, adopt)
    _check_spec(found, spec)
    claimed = Head(
        writer_epoch=head.writer_epoch if head else _first_epoch(store, prefix, found.files.version, adopt),
        version=found.files.version,
        manifest_sha256=head.manifest_sha256 if head and found.manifest else None,
        progress=head.progress if head and is_followed(store, prefix, head, found) else None,
    )
    if info is None or claimed != head:
        info = _swap_head(store, prefix, claimed, info)
    outdated = [] if adopt is None else outdated_files(store, prefix, found, head, adopt)
    writer = CheckpointWriter(store, prefix, spec, claimed, info, found, outdated)
    with WriterHeartbeat(store, lease):
        if adopt is not None:
            writer.alternates = True
            writer.write_mirror()
            end_old_uploads(store, prefix, written=lease)
        if found.manifest is not None:
            writer.catch_up()
        yield writer


def _unfinished(store: Store, prefix: str, head: Head, spec: str) -> PartialRecord | None:
    """Read the record that HEAD.json names.

    None is returned when HEAD.json names none, or one of another spec.

    Raises:
        FormatError: it is missing or damaged.
    """
    if head.progress is None:
        return None
    try:
        progress = read_progress(store, prefix, head.progress)
    except NotFoundError as error:
        raise FormatError(f"{location(store, prefix, HEAD)}: names what is missing, restore it: {error}") from None
    return progress if progress.spec == spec and progress.iteration.number == head.version + 1 else None


def _swap_head(store: Store, prefix: str, head: Head, expected: ObjectInfo | None) -> ObjectInfo:
    source = location(store, prefix, HEAD)
    try:
        return store.swap(join(prefix, HEAD), encode_unique(head), expected=expected)
    except ConflictError:
        raise ConflictError(f"{source}: another writer claimed this run at the same moment") from None


def _committed(store: Store, prefix: str, head: Head | None) -> Newest:
    manifest = None if head is None else read_manifest(store, prefix, head)
    if manifest is not None:
        return Newest(VerifiedFiles(store, prefix, manifest.version, manifest.objects), manifest)
    if head is not None and head.version:
        raise ConfigError(f"{location(store, prefix)}: holds version {head.version} of PBG's; choose another directory")
    return Newest(VerifiedFiles(store, prefix, 0, {}))


def _adoptable(store: Store, prefix: str, head: Head | None, expect: Names) -> Newest:
    if head is None and store.head(join(prefix, MANIFEST)) is not None:
        raise ConfigError(
            f"{location(store, prefix)}: is a preserved snapshot, which stays as it is; choose another "
            "checkpoint_path and give this one as init_path"
        )
    return newest(store, prefix, head, expect)


def _check_spec(found: Newest, spec: str) -> None:
    if found.manifest is not None and found.manifest.spec != spec:
        raise ConfigError(
            f"{found.files.url}: holds version {found.files.version} of another spec "
            f"({found.manifest.spec[:12]}, not {spec[:12]}); choose an empty checkpoint_path"
        )


def _first_epoch(store: Store, prefix: str, version: int, expect: Names | None) -> int:
    """Return a writer epoch above those of leftovers.

    It matters where HEAD.json was removed by hand.
    """
    names = expect(version + 1) if expect else []
    stamps = [info.metadata.get(WRITER_EPOCH, "0") for name in names if (info := store.head(join(prefix, name)))]
    return 1 + max(map(int, stamps), default=0)
