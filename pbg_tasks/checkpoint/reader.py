"""Reading of a committed set of files, verified through its manifest.

Files are verified before anything opens them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from pbg_tasks.checkpoint.manifest import Head, Manifest, ObjectRecord, decode, find_document, sha256
from pbg_tasks.errors import FormatError, NotFoundError
from pbg_tasks.formats.directory import read_checkpoint_version
from pbg_tasks.formats.tables import present_files
from pbg_tasks.storage.names import join
from pbg_tasks.storage.staging import fetch_many, fetch_verified

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from pbg_tasks.config.contract import Contract
    from pbg_tasks.storage import ObjectInfo, Store

Found = TypeVar("Found")

HEAD = "HEAD.json"
VERSION_MIRROR = "checkpoint_version.txt"
SHA256 = "sha256"
WRITER_EPOCH = "writer-epoch"
"""Names of the metadata of every object that this package writes."""


def manifest_name(version: int) -> str:
    """Return the file name of a version's manifest."""
    return f"manifest.v{version}.json"


def location(store: Store, prefix: str, name: str = "") -> str:
    """Return the name of a directory or file in messages."""
    return "/".join(part for part in (store.url, prefix, name) if part)


class CheckpointFiles(Protocol):
    """Files of one version of a checkpoint directory."""

    @property
    def url(self) -> str:
        """URL of the directory, for messages."""
        ...

    @property
    def version(self) -> int:
        """Checkpoint version in the file names."""
        ...

    @property
    def names(self) -> Collection[str]:
        """Names of the files that ``fetch`` can download."""
        ...

    def fetch(self, name: str, directory: Path) -> Path:
        """Download one file into ``directory``.

        Raises:
            FormatError: it does not belong to the version, or its bytes are known to be wrong.
        """
        ...

    def fetch_all(self, names: Iterable[str], directory: Path, *, threads: int = 4) -> list[Path]:
        """Download several files in parallel."""
        ...


@dataclass(frozen=True, slots=True)
class VerifiedFiles:
    """Files in one directory of a store, with recorded hashes.

    Attributes:
        prefix: the directory's key, without a trailing slash; empty for the store's root.
        version: checkpoint version in the file names.
        records: by file name.
        contract: of a preserved version; None where its manifest has none.
    """

    store: Store
    prefix: str
    version: int
    records: Mapping[str, ObjectRecord]
    contract: Contract | None = None

    @property
    def url(self) -> str:
        """URL of the directory, for messages."""
        return location(self.store, self.prefix)

    @property
    def names(self) -> Collection[str]:
        """Names of the files in the manifest."""
        return self.records.keys()

    def fetch(self, name: str, directory: Path) -> Path:
        """Download one file into ``directory`` and verify it.

        Raises:
            FormatError: the manifest does not list it, or its bytes are not those that were committed.
        """
        record, key = self._record(name), join(self.prefix, name)
        return fetch_verified(self.store, key, directory / name, sha256=record.sha256, size=record.size)

    def fetch_all(self, names: Iterable[str], directory: Path, *, threads: int = 4) -> list[Path]:
        """Download several files in parallel and verify each.

        With a ``FinalFile`` as the directory, so are the files: a reader changes none.

        Raises:
            FormatError: as ``fetch`` does; where the manifest lacks a file, nothing is downloaded.
        """
        chosen = {name: self._record(name) for name in names}
        items = [(join(self.prefix, name), directory / name, r.sha256, r.size) for name, r in chosen.items()]
        return fetch_many(self.store, items, threads=threads)

    def of_tables(self, *tables: str) -> list[str]:
        """Return the names of all files of some tables.

        A table that the manifest lacks is named as one file.
        """
        return [name for table in tables for name in present_files(table, self.names) or [table]]

    def fetch_table(self, table: str, directory: Path) -> Path:
        """Download a table into ``directory`` and verify it.

        Returns:
            The path by which ``prepare.sql.table`` reads it; where it is several files, there is none of that name.

        Raises:
            FormatError: as ``fetch_all`` does.
        """
        self.fetch_all(self.of_tables(table), directory)
        return directory / table

    def _record(self, name: str) -> ObjectRecord:
        record = self.records.get(name)
        if record is None:
            raise FormatError(f"{self.url}: no file {name!r} in its manifest")
        return record


def read_head(store: Store, prefix: str) -> tuple[Head | None, ObjectInfo | None]:
    """Read HEAD.json and the store's facts about it.

    Both are None without HEAD.json.

    Raises:
        FormatError: it was damaged or edited by hand.
    """
    return find_document(Head, store, join(prefix, HEAD)) or (None, None)


def read_manifest(store: Store, prefix: str, head: Head) -> Manifest | None:
    """Read the manifest that a head names; None before the first commit.

    Raises:
        FormatError: the manifest is missing or is not the one the head names.
    """
    if head.manifest_sha256 is None:
        return None
    key = join(prefix, manifest_name(head.version))
    try:
        data = store.get(key).data
    except NotFoundError:
        raise FormatError(f"{store.url}/{key}: missing, although HEAD.json names it as committed") from None
    if sha256(data) != head.manifest_sha256:
        raise FormatError(f"{store.url}/{key}: not the manifest HEAD.json names; it was changed after its commit")
    return decode(Manifest, data, source=f"{store.url}/{key}")


def found_twice(find: Callable[[], Found]) -> Found:
    """Return what ``find`` returns, unless it fails twice alike.

    A training removes a version once the next one counts, so what a reader misses may have gone between two of its
    reads. Damage is still there at the next look.

    Raises:
        FormatError: the second of two equal ones.
    """
    before = None
    while True:
        try:
            return find()
        except FormatError as error:
            if str(error) == before:
                raise
            before = str(error)


def open_committed(store: Store, prefix: str) -> tuple[Manifest, VerifiedFiles]:
    """Open the newest committed version of a checkpoint directory.

    Only this package may write to the directory (see ``plain.open_directory`` for the others).

    Raises:
        NotFoundError: no version has been committed there.
        FormatError: HEAD.json, the manifest or the version mirror was damaged or edited by hand.
    """
    return found_twice(lambda: _open_committed(store, prefix))


def _open_committed(store: Store, prefix: str) -> tuple[Manifest, VerifiedFiles]:
    url = location(store, prefix)
    head, _ = read_head(store, prefix)
    if head is None:
        raise NotFoundError(f"{url}: no checkpoint here (no {HEAD}); run `pbg train` first")
    manifest = read_manifest(store, prefix, head)
    if manifest is None:
        raise NotFoundError(f"{url}: no version has been committed yet; run `pbg train` first")
    mirrored = read_mirror(store, prefix)
    if mirrored is not None and mirrored > manifest.version:  # it may be behind, after a crash between the two writes
        raise FormatError(
            f"{url}/{VERSION_MIRROR}: names version {mirrored}, yet only {manifest.version} was committed ({HEAD}); "
            f"it was edited by hand: put {manifest.version} back"
        )
    return manifest, VerifiedFiles(store, prefix, manifest.version, manifest.objects)


def read_mirror(store: Store, prefix: str) -> int | None:
    """Return the number in ``checkpoint_version.txt``.

    None is returned when the file is missing or empty.

    Raises:
        FormatError: it holds no number.
    """
    try:
        data = store.get(join(prefix, VERSION_MIRROR)).data
    except NotFoundError:
        return None
    return read_checkpoint_version(data, source=location(store, prefix, VERSION_MIRROR)) if data.strip() else None
