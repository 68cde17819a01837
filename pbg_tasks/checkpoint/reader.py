"""Reading a committed set of files: through a manifest, verified before anything opens them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint.manifest import Head, Manifest, ObjectRecord, decode, sha256
from pbg_tasks.errors import FormatError, NotFoundError
from pbg_tasks.formats.directory import read_checkpoint_version
from pbg_tasks.storage.staging import fetch_many, fetch_verified

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pbg_tasks.storage import Store

HEAD = "HEAD.json"
VERSION_MIRROR = "checkpoint_version.txt"


def manifest_name(version: int) -> str:
    """Return the file name of a version's manifest."""
    return f"manifest.v{version}.json"


@dataclass(frozen=True, slots=True)
class VerifiedFiles:
    """Files in one directory of a store, with the hash each must have.

    Attributes:
        prefix: the directory's key, without a trailing slash.
        version: checkpoint version the file names carry.
        records: by file name.
    """

    store: Store
    prefix: str
    version: int
    records: Mapping[str, ObjectRecord]

    def fetch(self, name: str, directory: Path) -> Path:
        """Download one file into ``directory`` and verify it.

        Raises:
            FormatError: the manifest does not list it, or its bytes are not those that were committed.
        """
        record = self.records.get(name)
        if record is None:
            raise FormatError(f"{self.store.url}/{self.prefix}: no file {name!r} in its manifest")
        return fetch_verified(
            self.store, f"{self.prefix}/{name}", directory / name, sha256=record.sha256, size=record.size
        )

    def fetch_all(self, names: Iterable[str], directory: Path, *, threads: int = 4) -> list[Path]:
        """Download several files in parallel and verify each."""
        chosen = {name: self.records[name] for name in names}
        items = [(f"{self.prefix}/{name}", directory / name, r.sha256, r.size) for name, r in chosen.items()]
        return fetch_many(self.store, items, threads=threads)


def read_manifest(store: Store, prefix: str, head: Head) -> Manifest | None:
    """Read the manifest a head points to; None when nothing has been committed yet.

    Raises:
        FormatError: the manifest is missing or is not the one the head names.
    """
    if head.manifest_sha256 is None:
        return None
    key = f"{prefix}/{manifest_name(head.version)}"
    try:
        data = store.get(key).data
    except NotFoundError:
        raise FormatError(f"{store.url}/{key}: missing, although HEAD.json names it as committed") from None
    if sha256(data) != head.manifest_sha256:
        raise FormatError(f"{store.url}/{key}: not the manifest HEAD.json names; it was changed after its commit")
    return decode(Manifest, data, source=f"{store.url}/{key}")


def open_committed(store: Store, prefix: str) -> tuple[Manifest, VerifiedFiles]:
    """Open the newest committed version of a checkpoint directory.

    Raises:
        NotFoundError: nothing has been committed there.
        FormatError: HEAD.json, the manifest or the version mirror was damaged or edited by hand.
    """
    url = f"{store.url}/{prefix}"
    try:
        head = decode(Head, store.get(f"{prefix}/{HEAD}").data, source=f"{url}/{HEAD}")
    except NotFoundError:
        raise NotFoundError(f"{url}: no checkpoint here (no {HEAD}); run `pbg train` first") from None
    manifest = read_manifest(store, prefix, head)
    if manifest is None:
        raise NotFoundError(f"{url}: no version has been committed yet; run `pbg train` first")
    _check_mirror(store, prefix, manifest.version)
    return manifest, VerifiedFiles(store, prefix, manifest.version, manifest.objects)


def _check_mirror(store: Store, prefix: str, version: int) -> None:
    """Refuse a ``checkpoint_version.txt`` that names a version that was never committed.

    The mirror may lag behind (a crash between the two writes); it can never be ahead.
    """
    source = f"{store.url}/{prefix}/{VERSION_MIRROR}"
    try:
        mirrored = read_checkpoint_version(store.get(f"{prefix}/{VERSION_MIRROR}").data, source=source)
    except NotFoundError:
        return
    if mirrored > version:
        raise FormatError(
            f"{source}: names version {mirrored}, yet only {version} was committed (HEAD.json); it was edited by "
            f"hand: put {version} back"
        )
