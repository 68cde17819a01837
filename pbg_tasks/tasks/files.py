"""Sets of files of a task or an import, with manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pbg_tasks.checkpoint import ObjectRecord, VerifiedFiles
from pbg_tasks.checkpoint.manifest import decode, encode
from pbg_tasks.config.base import Frozen
from pbg_tasks.errors import ConfigError, ConflictError, FormatError, NotFoundError
from pbg_tasks.storage import FinalFile
from pbg_tasks.storage.staging import put_all_new, sha256_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pbg_tasks.storage import Store
    from pbg_tasks.tasks.context import RunContext

MANIFEST = "manifest.json"
IMPORT_MANIFEST = "import.manifest.json"
"""Lists what an import wrote into a directory, with sizes and hashes."""
CHANGED_SINCE_IMPORT = (
    f"not the bytes that `pbg import` recorded; restore it or import again (or remove {IMPORT_MANIFEST} beside it, if "
    "another program changed it on purpose)"
)


class FileSet(Frozen):
    """Names, sizes and hashes of all files of a directory."""

    format: Literal[1] = 1
    objects: dict[str, ObjectRecord]


def upload_directory(run: RunContext, name: str, directory: Path) -> dict[str, ObjectRecord]:
    """Upload every file below ``directory`` as ``{run}/{name}/...``.

    Doing it again with equal bytes changes nothing.

    Raises:
        ConflictError: other bytes are there, so the task is not deterministic or two differ in version.
    """
    paths = {str(path.relative_to(directory)): path for path in sorted(directory.rglob("*")) if path.is_file()}
    prefix = run.key(name)
    try:
        stored = put_all_new(run.store, {f"{prefix}/{file}": FinalFile(path) for file, path in paths.items()})
        records = {file: ObjectRecord.model_validate(stored[f"{prefix}/{file}"]) for file in paths}
        _put_equal(run.store, f"{prefix}/{MANIFEST}", encode(FileSet(objects=records)))
    except ConflictError as error:
        raise ConflictError(
            f"{error}; an earlier try of this task left other bytes, as another version of this package or of DuckDB "
            f"or Arrow would: go on with the version that began the run, or remove {run.url}/{name} and try again"
        ) from error
    return records


def _put_equal(store: Store, key: str, data: bytes) -> None:
    try:
        store.put_new(key, data)
    except ConflictError:
        if store.get(key).data != data:
            raise


def open_directory(run: RunContext, name: str) -> VerifiedFiles:
    """Open what ``upload_directory`` stored.

    Raises:
        ConfigError: the task that writes it has not finished.
        FormatError: its manifest is damaged.
    """
    key = run.key(f"{name}/{MANIFEST}")
    try:
        data = run.store.get(key).data
    except NotFoundError:
        raise ConfigError(f"{run.url}/{name}: not there yet; run the task that writes it first") from None
    files = decode(FileSet, data, source=f"{run.store.url}/{key}")
    if not files.objects:
        raise FormatError(f"{run.store.url}/{key}: lists no files")
    return VerifiedFiles(run.store, run.key(name), 0, files.objects)


def import_records(store: Store) -> Mapping[str, ObjectRecord]:
    """Return what an import recorded in a directory; empty without one.

    Raises:
        FormatError: its manifest is damaged.
    """
    try:
        data = store.get(IMPORT_MANIFEST).data
    except NotFoundError:
        return {}
    return decode(FileSet, data, source=f"{store.url}/{IMPORT_MANIFEST}").objects


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
        raise FormatError(f"{url}: {CHANGED_SINCE_IMPORT}")
