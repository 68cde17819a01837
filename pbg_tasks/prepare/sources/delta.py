"""Source of versions of Delta tables, read by the package ``deltalake``.

A location is the table's own, local or in S3, with ``@{snapshot}`` behind it; a snapshot is a number of a version.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from pbg_tasks.config import SnapshotFile
from pbg_tasks.config.sources import DeltaOptions
from pbg_tasks.errors import AccessError, ConfigError, InputError, MissingSnapshotError, PbgError, StorageError
from pbg_tasks.prepare.sources.arrow import ArrowSource
from pbg_tasks.prepare.sources.base import shared
from pbg_tasks.storage.columnar import filesystem_for, read_errors
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.storage.s3_settings import s3_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import fsspec
    import pyarrow as pa

_COMMIT, _THREADS = re.compile(r"/\d{20}\.json$"), 8
_SAME_ROWS = {"OPTIMIZE", "VACUUM START", "VACUUM END"}
"""Operations that leave all rows as they are."""
_KNOWN: dict[str, dict[tuple[str, int, str], str | None]] = {}
"""Operations of the commits of a log, as last listed: a watch lists again and again, perhaps 40,000 of them."""
_COLOUR = re.compile(r"\x1b\[\d*m")
_REFUSED = re.compile(r"40[13] (Unauthorized|Forbidden)")
"""Answer of a store in an error, which has the class of any failure."""


class DeltaSource(ArrowSource):
    """Source of the format ``delta``."""

    read_options = DeltaOptions

    def parts(self, location: str, environment: Mapping[str, str] = os.environ) -> list[SnapshotFile]:
        """Return one part, whose version has the table's id and the number."""
        with _errors(location):
            table = _table(location, environment)
            return [SnapshotFile(uri=location, size=0, version=f"{table.metadata().id}:{table.version()}")]

    def keys(self, template: str, environment: Mapping[str, str] = os.environ) -> list[str]:
        """List the versions whose log the table still has.

        Those that only compacted files are left out. Each commit is read: the library's history counts down from the
        newest as if each had its description, which writers may leave out.
        """
        place = template.rpartition("@")[0].rstrip("/")
        with _errors(template):
            _open(place, environment)
            files, log = filesystem_for(place, environment), f"{place}/_delta_log"
            with read_errors(log):
                files.invalidate_cache()
                listed = (info for info in files.ls(log, detail=True) if _COMMIT.search(info["name"]))
                commits = sorted((each["name"], each["size"], _stamp(each)) for each in listed)
                known = _KNOWN.get(log, {})
                unread = [commit for commit in commits if commit not in known]
                read = in_parallel(partial(_operation, files), [path for path, *_ in unread], _THREADS)
        known = known | dict(zip(unread, read, strict=True))
        _KNOWN[log] = done = {commit: known[commit] for commit in commits}
        return [str(int(path[-25:-5])) for (path, *_), did in done.items() if did not in _SAME_ROWS]

    def schema(self, file: SnapshotFile) -> pa.Schema:
        """Return the columns of the version."""
        with _errors(file.uri):
            return self._dataset(file).schema

    def batches(self, file: SnapshotFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read the files of the version."""
        with _errors(file.uri):
            dataset = self._dataset(file)
            for fragment in shared(_fragments(dataset), file):
                yield from fragment.to_batches(dataset.schema, columns=list(columns), use_threads=False)

    def pieces(self, file: SnapshotFile) -> list[str]:
        """List the data files."""
        with _errors(file.uri):
            return [fragment.path for fragment in _fragments(self._dataset(file))]

    def _dataset(self, file: SnapshotFile) -> Any:  # noqa: ANN401 - untyped
        self.check(file)
        return _table(file.uri, os.environ).to_pyarrow_dataset()


def _stamp(info: Mapping[str, object]) -> str:
    """Return the tag of a file, another once it is replaced."""
    return str(info.get("ETag") or info.get("mtime"))


def _operation(files: fsspec.AbstractFileSystem, commit: str) -> str | None:
    """Return what a commit did; None where it has no description."""
    lines = [json.loads(line) for line in files.cat_file(commit).splitlines() if b'"commitInfo"' in line]
    return next((line["commitInfo"].get("operation") for line in lines if "commitInfo" in line), None)


def _fragments(dataset: Any) -> list[Any]:  # noqa: ANN401 - untyped
    """Return the data files of a version by their paths."""
    return sorted(dataset.get_fragments(), key=lambda fragment: fragment.path)


def _table(location: str, environment: Mapping[str, str]) -> Any:  # noqa: ANN401 - untyped
    """Open the version that a location names."""
    place, _, version = location.rpartition("@")
    if not version.isdecimal():
        raise InputError(f"{location}: {version!r} is no number of a version")
    return _open(place, environment, int(version))


def _open(place: str, environment: Mapping[str, str], version: int | None = None) -> Any:  # noqa: ANN401 - untyped
    """Open a version of a table, the newest unless one is given."""
    try:
        import deltalake
    except ImportError as error:
        raise ConfigError(
            f"snapshots of format delta need the package deltalake ({error}): pip install 'pbg-tasks[delta]'"
        ) from None
    options = _store_options(environment) if place.startswith("s3://") else None
    if not deltalake.DeltaTable.is_deltatable(place, options):
        raise InputError(f"{place}: no Delta table there; check the location")
    return deltalake.DeltaTable(place, version=version, storage_options=options)


def _store_options(environment: Mapping[str, str]) -> dict[str, str]:
    found = s3_settings(environment)
    given = {
        "AWS_ENDPOINT_URL": found.endpoint,
        "AWS_ALLOW_HTTP": str(found.unencrypted).lower(),
        "AWS_REGION": found.region,
        "AWS_ACCESS_KEY_ID": found.key,
        "AWS_SECRET_ACCESS_KEY": found.secret,
        "AWS_SESSION_TOKEN": found.token,
    }
    return {name: value for name, value in given.items() if value}


@contextmanager
def _errors(location: str) -> Iterator[None]:
    """Turn errors of the library into errors of this package.

    Raises:
        InputError: the table or the version is missing, damaged, or has a feature that the library cannot read.
        AccessError: reading is not permitted.
        StorageError: the store cannot be reached.
    """
    try:
        yield
    except (PbgError, MemoryError):
        raise
    except Exception as error:  # the library's own classes, which are there only with it
        kind, text = type(error).__name__, _COLOUR.sub("", str(error))
        if kind in {"TableNotFoundError", "DeltaProtocolError", "SchemaMismatchError", "FileNotFoundError"}:
            raise InputError(f"{location}: the table or version cannot be read ({text})") from error
        if kind == "DeltaError":
            raise MissingSnapshotError(f"{location}: the version is missing or was vacuumed ({text})") from error
        if isinstance(error, PermissionError) or _REFUSED.search(text):
            advice = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or the file mode"
            raise AccessError(f"{location}: reading is refused ({text}); {advice}") from error
        raise StorageError(f"{location}: cannot be read ({kind}: {text}); check AWS_ENDPOINT_URL") from error
