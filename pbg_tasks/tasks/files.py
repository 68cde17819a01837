"""Directories of files, with manifests of tasks and imports."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pbg_tasks.checkpoint import ObjectRecord, VerifiedFiles
from pbg_tasks.checkpoint.manifest import encode, find_document, sha256
from pbg_tasks.checkpoint.reader import location
from pbg_tasks.config.base import Frozen
from pbg_tasks.errors import ConfigError, ConflictError, FormatError, NotFoundError
from pbg_tasks.storage import FinalFile, LocalStore
from pbg_tasks.storage.names import join
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.storage.staging import fetch_verified, put_all_new, put_equal, sha256_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pbg_tasks.storage import Store
    from pbg_tasks.tasks.context import RunContext

MANIFEST = "manifest.json"
IMPORT_MANIFEST = "import.manifest.json"
"""Lists what an import wrote into a directory, with sizes and hashes."""
UNFINISHED = "import.unfinished"
"""Key in an entity path while an import changes it and its edge paths."""
_CHANGED_SINCE_IMPORT = (
    f"not the bytes that `pbg import` recorded; restore it or import again (or remove {IMPORT_MANIFEST} beside it, if "
    "another program changed it on purpose)"
)
_CHANGED = "not the bytes that were recorded when it was written; restore it"
_THREADS = 4


class FileSet(Frozen):
    """Names, sizes and hashes of all files of a directory."""

    format: Literal[1] = 1
    objects: dict[str, ObjectRecord]


@contextmanager
def left_before(run: RunContext, name: str) -> Iterator[None]:
    """Report the ways out of a conflict below ``{run}/{name}``.

    Raises:
        ConflictError: the conflict, with the ways out.
    """
    try:
        yield
    except ConflictError as error:
        raise ConflictError(
            f"{error}; an earlier try of this task left other bytes, as another version of this package or of DuckDB, "
            f"Arrow or Spark would: go on with the version that began the run, or remove {run.url}/{name} and try again"
        ) from error


def upload_directory(
    run: RunContext, name: str, directory: Path, *, further: Mapping[str, ObjectRecord] | None = None
) -> None:
    """Upload every file below ``directory`` as ``{run}/{name}/...``.

    Doing it again with equal bytes changes nothing. The manifest also lists ``further`` files, which others stored.

    Raises:
        ConflictError: other bytes are there, so the task is not deterministic or two differ in version.
    """
    paths = {str(path.relative_to(directory)): path for path in sorted(directory.rglob("*")) if path.is_file()}
    prefix = run.key(name)
    with left_before(run, name):
        stored = put_all_new(run.store, {f"{prefix}/{file}": FinalFile(path) for file, path in paths.items()})
        records = {file: ObjectRecord.model_validate(stored[f"{prefix}/{file}"]) for file in paths}
        write_manifest(run, name, records | dict(further or {}))


def write_manifest(run: RunContext, name: str, records: Mapping[str, ObjectRecord]) -> None:
    """Store the manifest of files that others stored as ``{run}/{name}/...``.

    Raises:
        ConflictError: an earlier try of this task stored another one.
    """
    put_equal(run.store, f"{run.key(name)}/{MANIFEST}", encode(FileSet(objects=dict(sorted(records.items())))))


def open_directory(run: RunContext, name: str) -> VerifiedFiles:
    """Open what ``upload_directory`` stored.

    Raises:
        ConfigError: the task that writes it has not finished.
        FormatError: its manifest is damaged.
    """
    key = run.key(f"{name}/{MANIFEST}")
    if (found := find_document(FileSet, run.store, key)) is None:
        raise ConfigError(f"{run.url}/{name}: not there yet; run the task that writes it first")
    if not (objects := found[0].objects):
        raise FormatError(f"{run.store.url}/{key}: lists no files")
    return VerifiedFiles(run.store, run.key(name), 0, objects)


def import_records(store: Store) -> Mapping[str, ObjectRecord]:
    """Return what an import recorded in a directory; empty without one.

    Raises:
        FormatError: its manifest is damaged.
    """
    found = find_document(FileSet, store, IMPORT_MANIFEST)
    return {} if found is None else found[0].objects


def refuse_unfinished(store: Store) -> None:
    """Refuse a directory of an import that has not finished.

    Raises:
        ConfigError: it runs, or was cut off.
    """
    if store.head(UNFINISHED) is not None:
        raise ConfigError(
            f"{store.url}/{UNFINISHED}: an import is running or was cut off, so entities and edges may not belong "
            "together; run `pbg import` again"
        )


def check_imported(url: str, path: Path, record: ObjectRecord | None) -> None:
    """Compare a local file with what an import recorded of it.

    Args:
        url: of the file, for messages.
        path: of the local one.
        record: None of a file that the import did not write.

    Raises:
        FormatError: they differ.
    """
    if record is not None and (path.stat().st_size != record.size or sha256_file(path) != record.sha256):
        raise FormatError(f"{url}: {_CHANGED_SINCE_IMPORT}")


@dataclass(frozen=True, slots=True)
class Directory:
    """Files in one directory of a store.

    Attributes:
        prefix: the directory's key; empty for the store's root.
        records: by name of file; those of an import, unless ``whole``.
        whole: whether these are all files; no other is read then.
    """

    store: Store
    prefix: str
    records: Mapping[str, ObjectRecord] = field(default_factory=dict)
    whole: bool = False

    @classmethod
    def of(cls, files: VerifiedFiles) -> Directory:
        """Return the directory that a manifest describes."""
        return cls(files.store, files.prefix, files.records, whole=True)

    @classmethod
    def imported(cls, store: Store) -> Directory:
        """Return a directory of PBG, with the records of an import.

        Raises:
            FormatError: the manifest of the import is damaged.
        """
        return cls(store, "", import_records(store))

    @property
    def url(self) -> str:
        """URL of the directory."""
        return location(self.store, self.prefix)

    def read(self, name: str) -> bytes | None:
        """Read a small file; None when it is not there.

        Raises:
            FormatError: it has other bytes than recorded.
            NotFoundError: it is gone, though a manifest of all files lists it.
        """
        try:
            data = self.store.get(join(self.prefix, name)).data
        except NotFoundError:
            if self.whole and name in self.records:
                raise
            return None
        if name in self.records and sha256(data) != self.records[name].sha256:
            raise FormatError(f"{self.url}/{name}: {_CHANGED if self.whole else _CHANGED_SINCE_IMPORT}")
        return data

    def stored(self, name: str) -> datetime | None:
        """Return the time of a file's write, UTC, if known."""
        found = self.store.head(join(self.prefix, name))
        return None if found is None or found.modified is None else datetime.fromtimestamp(found.modified, UTC)

    def bring(self, names: Iterable[str], scratch: Path) -> list[Path]:
        """Return local paths of several files, verified where they are recorded.

        A local file is used in its place.

        Raises:
            FormatError: one has other bytes than recorded, or its manifest does not list it.
            NotFoundError: one is missing.
        """
        return in_parallel(lambda name: self._bring(name, scratch), names, _THREADS)

    def bring_unread(self, name: str, scratch: Path) -> Path:
        """Return the local path of a file that its reader verifies.

        The file is recorded, and the reader verifies what it reads of it.

        A local file is used in its place, with the recorded size; others are downloaded and verified as a whole.

        Raises:
            FormatError: it has another size.
            NotFoundError: it is missing.
        """
        if not isinstance(self.store, LocalStore):
            return self._bring(name, scratch)
        path = Path(self.store.url) / join(self.prefix, name)
        if not path.is_file():
            raise NotFoundError(f"{self.url}: file {name!r} is missing")
        if path.stat().st_size != self.records[name].size:
            raise FormatError(f"{path}: {_CHANGED}")
        return path

    def _bring(self, name: str, scratch: Path) -> Path:
        key, record = join(self.prefix, name), self.records.get(name)
        if self.whole and record is None:
            raise FormatError(f"{self.url}: no file {name!r} in its manifest")
        if isinstance(self.store, LocalStore):
            return self._in_place(name, Path(self.store.url) / key, record)
        if self.whole and record is not None:
            return fetch_verified(self.store, key, scratch / name, sha256=record.sha256, size=record.size)
        self.store.fetch(key, scratch / name)
        check_imported(f"{self.url}/{name}", scratch / name, record)
        return scratch / name

    def _in_place(self, name: str, path: Path, record: ObjectRecord | None) -> Path:
        if not path.is_file():
            raise NotFoundError(f"{self.url}: file {name!r} is missing")
        if not self.whole:
            check_imported(str(path), path, record)
        elif record is not None and (path.stat().st_size != record.size or sha256_file(path) != record.sha256):
            raise FormatError(f"{path}: {_CHANGED}")
        return path
