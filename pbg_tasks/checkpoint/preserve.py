"""Preserved snapshots of a version: ``epoch_{E}/``, whole and movable.

They are below the checkpoint directory. PBG links such a snapshot to its parent by absolute paths, so it breaks when it
is moved. Here the store copies the objects; the snapshot is a plain checkpoint directory of its own, with a manifest
written last.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pbg_tasks.checkpoint.manifest import Manifest, ObjectRecord, decode, encode, sha256
from pbg_tasks.checkpoint.reader import VERSION_MIRROR, VerifiedFiles, location
from pbg_tasks.config.base import Growing
from pbg_tasks.config.contract import Contract
from pbg_tasks.errors import ConflictError, FormatError, NotFoundError
from pbg_tasks.formats.directory import checkpoint_version_bytes
from pbg_tasks.storage import LocalStore
from pbg_tasks.storage.names import join
from pbg_tasks.storage.staging import put_all_new, put_equal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pbg_tasks.storage import Store

MANIFEST = "manifest.json"


class PreservedManifest(Growing):
    """Manifest of a preserved snapshot.

    Attributes:
        spec: hash of the run spec or config it was trained with.
        version: checkpoint version in the file names.
        epochs: number of finished epochs.
        objects: every file of the directory but this one, by name.
        contract: facts by which readers check that the vectors fit; None for a snapshot that no channel serves, and
            where an earlier version wrote the manifest.
    """

    later_keys: ClassVar[tuple[str, ...]] = ("contract",)

    format: Literal[1] = 1
    spec: str
    version: int
    epochs: int
    objects: dict[str, ObjectRecord]
    contract: Contract | None = None

    def sha256(self) -> str:
        """Return the hash of the document as it is stored."""
        return sha256(encode(self))


def preserved_prefix(prefix: str, epoch: int) -> str:
    """Return the key of the directory that preserves an epoch."""
    return join(prefix, f"epoch_{epoch}")


def preserve(
    store: Store,
    prefix: str,
    manifest: Manifest,
    target: str,
    *,
    epochs: int,
    copies: Mapping[str, tuple[str, ObjectRecord]] | None = None,
    documents: Mapping[str, bytes] | None = None,
    stored: Mapping[str, ObjectRecord] | None = None,
    contract: Contract | None = None,
    apart: bool = False,
) -> PreservedManifest:
    """Preserve a committed version; a repetition changes nothing.

    Args:
        store: of the checkpoint.
        prefix: its directory.
        manifest: of the version.
        target: key of the directory for the copy.
        epochs: number of finished epochs.
        copies: more files for the directory, by name: the key they are copied from and their record.
        documents: more small files, by name.
        stored: more files that are in the directory already, by name.
        contract: of the model, for its readers.
        apart: whether the directory may share no file with the checkpoint, since PBG writes there in place.

    Raises:
        ConflictError: the directory holds other bytes.
    """
    sources = {name: (join(prefix, name), record) for name, record in manifest.objects.items()} | dict(copies or {})
    for name, (source, _) in sources.items():
        (_copy_apart if apart else _copy)(store, source, join(target, name))
    small = _put_documents(store, target, manifest.version, documents or {})
    document = PreservedManifest(
        spec=manifest.spec,
        version=manifest.version,
        epochs=epochs,
        objects={name: record for name, (_, record) in sources.items()} | small | dict(stored or {}),
        contract=contract,
    )
    put_equal(store, join(target, MANIFEST), encode(document))
    return document


def open_preserved(store: Store, directory: str, *, expected_sha256: str | None = None) -> VerifiedFiles:
    """Open a preserved directory through its manifest.

    Raises:
        NotFoundError: it has no manifest: its preservation never finished.
        FormatError: the manifest is not the one expected, or unreadable.
    """
    document = read_preserved(store, directory, expected_sha256=expected_sha256)
    return VerifiedFiles(store, directory, document.version, document.objects, document.contract)


def is_preserved(store: Store, directory: str) -> bool:
    """Return whether the preservation of a directory has finished."""
    return store.head(join(directory, MANIFEST)) is not None


def read_preserved(store: Store, directory: str, *, expected_sha256: str | None = None) -> PreservedManifest:
    """Read the manifest of a preserved directory.

    Raises:
        NotFoundError: it has none: its preservation never finished, or a published release was removed.
        FormatError: it is not the one expected, or unreadable.
    """
    source = location(store, directory, MANIFEST)
    way = "restore it, or serve another release (`pbg rollback`)"
    try:
        data = store.get(join(directory, MANIFEST)).data
    except NotFoundError:
        if expected_sha256 is None:
            raise
        raise NotFoundError(f"{source}: missing, so the release cannot be opened; {way}") from None
    if expected_sha256 is not None and sha256(data) != expected_sha256:
        raise FormatError(f"{source}: not the manifest that was published; it was changed afterwards; {way}")
    return decode(PreservedManifest, data, source=source)


def preserve_files(
    store: Store,
    files: Mapping[str, Path],
    target: str,
    *,
    spec: str,
    version: int,
    epochs: int,
    contract: Contract | None = None,
) -> PreservedManifest:
    """Make a preserved directory of local files; a repetition changes nothing.

    Args:
        store: of the directory.
        files: by name.
        target: key of the directory.
        spec: hash of the spec it was trained with.
        version: checkpoint version in the file names.
        epochs: number of finished epochs.
        contract: of the model, for its readers.

    Raises:
        ConflictError: the directory holds other bytes.
    """
    stored = put_all_new(store, {join(target, name): path for name, path in files.items()})
    objects = {name: ObjectRecord.model_validate(stored[join(target, name)]) for name in files}
    objects |= _put_documents(store, target, version, {})
    document = PreservedManifest(spec=spec, version=version, epochs=epochs, objects=objects, contract=contract)
    put_equal(store, join(target, MANIFEST), encode(document))
    return document


def _copy(store: Store, source: str, target: str) -> None:
    store.copy(source, target)


def _copy_apart(store: Store, source: str, target: str) -> None:
    """Copy an object's bytes, where ``copy`` would share its file."""
    info = store.head(source) if isinstance(store, LocalStore) else None
    if info is not None:
        with suppress(ConflictError):  # `copy` raises it where the bytes differ
            store.put_new(target, Path(store.url) / source, metadata=info.metadata)
            return
    store.copy(source, target)


def _put_documents(store: Store, target: str, version: int, documents: Mapping[str, bytes]) -> dict[str, ObjectRecord]:
    """Store small files and the mirror of the version; return their records."""
    small = {VERSION_MIRROR: checkpoint_version_bytes(version), **documents}
    for name, data in small.items():
        put_equal(store, join(target, name), data)
    return {name: ObjectRecord(sha256=sha256(data), size=len(data)) for name, data in small.items()}
