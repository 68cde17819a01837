"""Source of snapshots of Iceberg tables, read by PyIceberg.

A location is ``iceberg://{catalog}/{namespace}.{table}/{snapshot}``. A snapshot is named by its id, by a tag, or by the
key under which the source lists it: the time of its commit and its id. Its columns are those of its own schema, so
that a later rename changes nothing about it; rows of older files have them too.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pbg_tasks.config import SnapshotFile
from pbg_tasks.config.nights import SNAPSHOT_KEY
from pbg_tasks.config.sources import IcebergOptions
from pbg_tasks.errors import AccessError, ConfigError, InputError, MissingSnapshotError, PbgError, StorageError
from pbg_tasks.prepare.sources.arrow import ArrowSource
from pbg_tasks.prepare.sources.base import shared
from pbg_tasks.storage.columnar import CHANGED
from pbg_tasks.storage.s3_settings import s3_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

_LOCATION = re.compile(r"iceberg://([^/]+)/([^/]+)/([^/]+)")
_KEY = re.compile(r"\d{8}T\d{9}-(\d+)")
_UNCHANGED = "replace"
"""Operation of a snapshot that has the rows of the one before, as after a compaction."""
_SHOWN_TAGS = 10
_REFUSED = re.compile(r"AWS Error (ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH)")
"""Answer of a store in an error of Arrow, which has the class of any failure."""


class IcebergSource(ArrowSource):
    """Source of the format ``iceberg``."""

    read_options = IcebergOptions

    def parts(self, location: str, environment: Mapping[str, str] = os.environ) -> list[SnapshotFile]:
        """Return one part, whose version is the snapshot's id."""
        with _errors(location):
            table, snapshot = self._find(location, environment)
            del table
            size = int((snapshot.summary or {}).get("total-files-size") or 0)
            return [SnapshotFile(uri=location, size=size, version=str(snapshot.snapshot_id))]

    def keys(self, template: str, environment: Mapping[str, str] = os.environ) -> list[str]:
        """List the snapshots before the current one, or the tags.

        Snapshots that only compacted files are left out.
        """
        with _errors(template):
            table = self._table(template, environment)
            if self.options.keys == "tags":
                refs = table.metadata.refs.items()
                return sorted(
                    name for name, ref in refs if ref.snapshot_ref_type == "tag" and re.fullmatch(SNAPSHOT_KEY, name)
                )
            found, snapshot = [], table.current_snapshot()
            while snapshot is not None:
                if snapshot.summary is None or snapshot.summary.operation.value != _UNCHANGED:
                    found.append(_key(snapshot))
                parent = snapshot.parent_snapshot_id
                snapshot = None if parent is None else table.metadata.snapshot_by_id(parent)
            return sorted(found)

    def schema(self, file: SnapshotFile) -> pa.Schema:
        """Return the columns of the snapshot's schema."""
        with _errors(file.uri):
            return _arrow_schema(self._scan(file).projection())

    def batches(self, file: SnapshotFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read the data files one after the other, without deleted rows."""
        import pyarrow as pa
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        with _errors(file.uri):
            scan = self._scan(file, tuple(columns))
            projection = scan.projection()
            schema = _arrow_schema(projection)
            # A scan of all files at once would read ahead of this task's memory.
            reader = ArrowScan(scan.table_metadata, scan.io, projection, AlwaysTrue())
            for task in shared(_planned(scan), file):
                for batch in reader.to_record_batches([task]):
                    yield from pa.Table.from_batches([batch]).select(schema.names).cast(schema).to_batches()

    def pieces(self, file: SnapshotFile) -> list[str]:
        """List the data files."""
        with _errors(file.uri):
            return [task.file.file_path for task in _planned(self._scan(file))]

    def _scan(self, file: SnapshotFile, columns: tuple[str, ...] = ("*",)) -> Any:  # noqa: ANN401 - untyped
        table, snapshot = self._find(file.uri, os.environ)
        if str(snapshot.snapshot_id) != file.version:
            raise InputError(f"{file.uri}: {CHANGED}")
        return table.scan(snapshot_id=snapshot.snapshot_id, selected_fields=columns)

    def _find(self, location: str, environment: Mapping[str, str]) -> tuple[Any, Any]:
        """Return a table and the snapshot that a location names."""
        table, name = self._table(location, environment), location.rpartition("/")[2]
        ref = table.metadata.refs.get(name)
        listed = _KEY.fullmatch(name)
        number = ref.snapshot_id if ref else int(listed[1]) if listed else int(name) if name.isdecimal() else None
        snapshot = None if number is None else table.metadata.snapshot_by_id(number)
        if snapshot is None or (listed is not None and ref is None and _key(snapshot) != name):
            tags = sorted(name for name, ref in table.metadata.refs.items() if ref.snapshot_ref_type == "tag")
            has = f"its last tags are {', '.join(tags[-_SHOWN_TAGS:])}" if tags else "it has none"
            raise MissingSnapshotError(
                f"{location}: the table has no snapshot or tag {name!r}, or it has expired; a tag keeps one, and {has}"
            )
        return table, snapshot

    def _table(self, location: str, environment: Mapping[str, str]) -> Any:  # noqa: ANN401 - untyped
        try:
            from pyiceberg.catalog import load_catalog
            from pyiceberg.utils.config import Config
        except ImportError as error:
            raise ConfigError(
                f"snapshots of format iceberg need the package pyiceberg ({error}): pip install 'pbg-tasks[iceberg]'"
            ) from None
        found = _LOCATION.fullmatch(location)
        if found is None:
            raise ConfigError(f"{location}: is no iceberg://CATALOG/NAMESPACE.TABLE/SNAPSHOT")
        # What is passed here goes before PyIceberg's own settings of the catalog, and only the spec's should.
        own = Config().get_catalog_config(found[1]) or {}
        store = {name: value for name, value in _store_properties(environment).items() if name not in own}
        catalog = load_catalog(found[1], **{**store, **self.options.catalog})
        return catalog.load_table(found[2])


def _key(snapshot: Any) -> str:  # noqa: ANN401 - untyped
    """Return a snapshot's key: time of its commit, and id."""
    seconds, millis = divmod(snapshot.timestamp_ms, 1000)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y%m%dT%H%M%S}{millis:03d}-{snapshot.snapshot_id}"


def _planned(scan: Any) -> list[Any]:  # noqa: ANN401 - untyped
    """Return the data files of a scan, each with its deletes.

    They are sorted by path.
    """
    return sorted(scan.plan_files(), key=lambda task: task.file.file_path)


def _arrow_schema(schema: Any) -> pa.Schema:  # noqa: ANN401 - untyped
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(schema, include_field_ids=False)


def _store_properties(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the endpoint and credentials of the stores' environment.

    They are none where it has none: a catalog may have its own.
    """
    try:
        found = s3_settings(environment)
    except AccessError:
        return {}
    given = {
        "s3.endpoint": found.endpoint,
        "s3.region": found.region,
        "s3.access-key-id": found.key,
        "s3.secret-access-key": found.secret,
        "s3.session-token": found.token,
    }
    return {name: value for name, value in given.items() if value}


@contextmanager
def _errors(location: str) -> Iterator[None]:
    """Turn errors of PyIceberg and its catalogs into errors of this package.

    Raises:
        InputError: the table is missing, damaged, or has something that PyIceberg cannot read.
        AccessError: reading is not permitted.
        StorageError: catalog or store cannot be reached.
    """
    try:
        yield
    except (PbgError, MemoryError):
        raise
    except Exception as error:  # errors of SQLAlchemy, requests and others, which a catalog lets pass
        kind = type(error).__name__
        if kind in {"NoSuchTableError", "NoSuchNamespaceError", "NoSuchIcebergTableError"}:
            raise InputError(f"{location}: no such table ({error}); check the namespace and name") from error
        refused = isinstance(error, PermissionError) or _REFUSED.search(str(error)) is not None
        if kind in {"ForbiddenError", "UnauthorizedError"} or refused:
            raise AccessError(f"{location}: reading is refused ({error}); check keys of catalog and store") from error
        if isinstance(error, (ValueError, TypeError, NotImplementedError, FileNotFoundError)):
            raise InputError(f"{location}: PyIceberg cannot read it ({kind}: {error})") from error
        raise StorageError(f"{location}: cannot be read ({kind}: {error}); check the catalog and the store") from error
