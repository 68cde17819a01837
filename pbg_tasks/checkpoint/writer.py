"""Claim a run, write its versions, commit each with one compare-and-swap.

The checkpoint directory is PBG's own: ``embeddings_{type}_{p}.v{N}.h5`` and ``model.v{N}.h5`` are data objects, created
once by one writer epoch; ``manifest.v{N}.json`` and ``HEAD.json`` stand beside them. Taking over bumps the writer epoch
in HEAD.json, so whoever wrote before loses at its next commit, whatever its clock says.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint.lease import PATIENCE_SECONDS, Lease, wait_until_free
from pbg_tasks.checkpoint.manifest import Head, Iteration, Manifest, ObjectRecord, decode, encode, sha256
from pbg_tasks.checkpoint.reader import HEAD, VERSION_MIRROR, VerifiedFiles, manifest_name, read_manifest
from pbg_tasks.errors import ConfigError, ConflictError
from pbg_tasks.storage.staging import sha256_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pbg_tasks.storage import ObjectInfo, Store

LEASE = "lease.json"
WRITER_EPOCH = "writer-epoch"
SHA256 = "sha256"


class CheckpointWriter:
    """The one that may commit to a checkpoint directory, until someone claims it after us.

    Attributes:
        manifest: the newest committed version, None when there is none.
    """

    def __init__(self, store: Store, prefix: str, spec: str, head: Head, info: ObjectInfo) -> None:
        self.store, self.prefix, self.spec = store, prefix, spec
        self.manifest = read_manifest(store, prefix, head)
        self._head, self._info = head, info

    @property
    def version(self) -> int:
        """How many iterations are committed."""
        return self._head.version

    @property
    def files(self) -> VerifiedFiles:
        """The committed files."""
        records = self.manifest.objects if self.manifest else {}
        return VerifiedFiles(self.store, self.prefix, self.version, records)

    def key(self, name: str) -> str:
        """Return the store's key of a file in this directory."""
        return f"{self.prefix}/{name}"

    def put(self, name: str, source: bytes | Path) -> ObjectRecord:
        """Write one object of the next version; a leftover of an older writer epoch is replaced.

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
            self.store.swap(key, source, expected=there, metadata=metadata)
        return record

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

    def commit(self, objects: dict[str, ObjectRecord], *, iteration: Iteration | None, edges: int) -> Manifest:
        """Make a version count: write its manifest, then swap HEAD.json.

        Args:
            objects: every object of the version, as ``put`` returned them.
            iteration: the one just finished; None commits a version 0 (nothing trained).
            edges: how many edges it trained.

        Raises:
            ConflictError: another writer claimed the run since; nothing of ours counts.
        """
        version = iteration.number if iteration else 0
        manifest = Manifest(
            spec=self.spec,
            writer_epoch=self._head.writer_epoch,
            version=version,
            parent=self._head.manifest_sha256,
            iteration=iteration,
            edges=(*(self.manifest.edges if self.manifest else ()), *((edges,) if iteration else ())),
            objects=objects,
        )
        data = encode(manifest)
        self.put(manifest_name(version), data)
        head = self._head.model_copy(update={"version": version, "manifest_sha256": sha256(data)})
        try:
            self._info = self.store.swap(self.key(HEAD), encode(head), expected=self._info)
        except ConflictError:
            raise ConflictError(
                f"{self.store.url}/{self.key(HEAD)}: another writer claimed this run; version {version} of "
                f"writer epoch {self._head.writer_epoch} does not count"
            ) from None
        self._head, self.manifest = head, manifest
        self.store.put(self.key(VERSION_MIRROR), f"{version}\n".encode())
        return manifest

    def drop(self, manifest: Manifest) -> None:
        """Delete the data of a version that is no longer the newest (version 0 is kept, as PBG keeps it)."""
        if manifest.version == 0 or manifest.version >= self.version:
            return
        for name in manifest.objects:
            self.store.delete(self.key(name))
        self.store.delete(self.key(manifest_name(manifest.version)))


@contextmanager
def claim(store: Store, prefix: str, spec: str, *, patience: float = PATIENCE_SECONDS) -> Iterator[CheckpointWriter]:
    """Become the writer of a checkpoint directory for the length of the context.

    Args:
        store: where it lies.
        prefix: key of the directory.
        spec: hash of what is trained; a directory trained with another one is refused.
        patience: seconds a silent lease is watched before it is taken over.

    Raises:
        ConflictError: another writer is alive, or claimed at the same moment.
        ConfigError: the directory belongs to another spec.
        FormatError: HEAD.json or the manifest is damaged.
    """
    wait_until_free(store, f"{prefix}/{LEASE}", patience=patience)
    key = f"{prefix}/{HEAD}"
    info = store.head(key)
    head = Head(writer_epoch=0)
    if info is not None:
        blob = store.get(key)
        info, head = blob.info, decode(Head, blob.data, source=f"{store.url}/{key}")
    head = head.model_copy(update={"writer_epoch": head.writer_epoch + 1})
    try:
        info = store.swap(key, encode(head), expected=info)
    except ConflictError:
        raise ConflictError(f"{store.url}/{key}: another writer claimed this run at the same moment") from None
    writer = CheckpointWriter(store, prefix, spec, head, info)
    if writer.manifest is not None and writer.manifest.spec != spec:
        raise ConfigError(
            f"{store.url}/{prefix}: holds version {writer.version} of another spec "
            f"({writer.manifest.spec[:12]}, not {spec[:12]}); choose an empty checkpoint_path"
        )
    with Lease(store, f"{prefix}/{LEASE}"):
        yield writer
