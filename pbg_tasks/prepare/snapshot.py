"""Files of a snapshot as one table of text.

It is ``raw(lhs, rel, rhs, weight, lhs_type, rhs_type)``, and a view, so every query reads the files again. A task with
many queries stages the files first: it reads them once into a table, which DuckDB moves to scratch where memory ends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, overload

import duckdb

from pbg_tasks.errors import InputError, StorageError
from pbg_tasks.formats.tables import file_names
from pbg_tasks.prepare.connection import duckdb_message, is_disk_full, phase, store_fault
from pbg_tasks.prepare.sources import blamed, snapshot_source
from pbg_tasks.prepare.sources.base import FOLDER, SHOWN_CHARACTERS, as_text, check_plain, warn_of_fraction
from pbg_tasks.prepare.sources.parquet import first_damaged
from pbg_tasks.prepare.sql import quoted
from pbg_tasks.prepare.sql import table as table_text
from pbg_tasks.prepare.text_files import copy_name
from pbg_tasks.progress import Progress
from pbg_tasks.storage.columnar import filesystem_for, read_errors
from pbg_tasks.storage.files import disk_errors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from pbg_tasks.config import Columns, GraphSpec, SnapshotFile
    from pbg_tasks.prepare.sources import Layout, SnapshotSource

STAGED = "edges.parquet"
"""Table of a snapshot's rows, as text, in the columns that the graph spec names."""
FIELDS = ("lhs", "rel", "rhs", "weight", "lhs_type", "rhs_type")
_NO_ROWS = f"SELECT {', '.join(f'NULL::VARCHAR AS {field}' for field in FIELDS)} WHERE false"
_CHUNK = 8 << 20
_NO_PARQUET = re.compile(r"[Nn]o magic bytes|too small to be a Parquet file")


class StagedFiles(Sequence["SnapshotFile"]):
    """Staged files, with the tables that hold their rows.

    Args:
        files: that were read.
        tables: of a connection, or scans of a local file, with their rows, in the columns of ``raw``.
    """

    def __init__(self, files: Sequence[SnapshotFile], tables: Sequence[str]) -> None:
        self.files, self.tables = tuple(files), tuple(tables)

    @overload
    def __getitem__(self, index: int) -> SnapshotFile: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[SnapshotFile]: ...

    def __getitem__(self, index: int | slice) -> SnapshotFile | Sequence[SnapshotFile]:
        return self.files[index]

    def __len__(self) -> int:
        return len(self.files)

    @classmethod
    def together(cls, parts: Sequence[StagedFiles]) -> StagedFiles:
        """Return the files of all parts as one."""
        return cls([file for part in parts for file in part.files], [table for part in parts for table in part.tables])


def stage_snapshot(
    connection: duckdb.DuckDBPyConnection, spec: GraphSpec, files: Sequence[SnapshotFile], table: str
) -> StagedFiles:
    """Read the snapshot's files once, into a table.

    Args:
        connection: in which the table is made.
        spec: defines the format of the files and their columns.
        files: as they were planned.
        table: its name.

    Raises:
        InputError: a file is missing, changed since it was planned, unreadable, or lacks a column.
    """
    types, in_place = _open_files(connection, spec, files, copied=True)
    warn_of_fractions(spec.columns, types)
    fields = ", ".join(_chosen(spec.columns))
    with phase(connection, "read"), reading(files):
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {table} AS SELECT {fields} FROM raw")
    _check_unchanged(spec, in_place)
    snapshot_source(spec.snapshots).close(connection, files)
    return StagedFiles(files, [table])


def warn_of_fractions(columns: Columns, types: Mapping[str, Collection[str]]) -> None:
    """Warn of names that are numbers with a fraction.

    Args:
        columns: of the names.
        types: of each column of the files, by its name.
    """
    for name in (columns.lhs, columns.rel, columns.rhs):
        for kind in sorted(types.get(name or "", ())):
            warn_of_fraction(f"column {name!r}", kind)


def write_staged(
    connection: duckdb.DuckDBPyConnection, spec: GraphSpec, files: Sequence[SnapshotFile], out: Path
) -> tuple[StagedFiles, dict[str, list[str]]]:
    """Read the snapshot's files once, into a Parquet file.

    The rows keep their order, so the same files give the same bytes with any number of threads. Parquet files that have
    what a staged file would have are copied as they are, for a tenth of the time: then each is a file of the table.

    Args:
        connection: for the work.
        spec: defines the format of the files and their columns.
        files: as they were planned.
        out: local directory of the table ``STAGED``.

    Returns:
        The staged files, and their types as ``open_snapshot`` returns them.

    Raises:
        InputError: as ``open_snapshot``.
    """
    types, in_place = _open_files(connection, spec, files, copied=True)
    target, chosen = out / STAGED, _chosen(spec.columns)
    alike = types == {field: ["VARCHAR"] for field in chosen} and list(chosen) == list(chosen.values())
    uris = [file.uri for file in files] if alike and len(in_place) == len(files) else []
    with reading(files):
        if uris and snapshot_source(spec.snapshots).as_staged(connection, uris):
            _copy(spec, files, out)
        else:
            with phase(connection, "read"), _two_threads(connection, len(files)):
                connection.execute(
                    f"COPY (SELECT {', '.join(chosen)} FROM raw) TO {quoted(str(target))} (FORMAT parquet)"
                )
    _check_unchanged(spec, in_place)
    snapshot_source(spec.snapshots).close(connection, files)
    return open_staged(files, target), types


@contextmanager
def _two_threads(connection: duckdb.DuckDBPyConnection, files: int) -> Iterator[None]:
    """Let two threads at least read several files.

    One alone ends a row group at each end of a scan, and several do not.
    """
    ((threads,),) = connection.execute("SELECT current_setting('threads')").fetchall()
    connection.execute(f"SET threads = {max(threads, min(files, 2))}")
    try:
        yield
    finally:
        connection.execute(f"SET threads = {threads}")


def _copy(spec: GraphSpec, files: Sequence[SnapshotFile], out: Path) -> None:
    """Copy files as those of the table ``STAGED``."""
    with Progress("read", total=sum(file.size for file in files), unit="B", ends=False) as progress:
        for file, name in zip(files, file_names(STAGED, len(files)), strict=True):
            try:
                _copy_one(file.uri, out / name, progress)
            except StorageError:
                _check_unchanged(spec, [file])  # a store may refuse to go on with an object that was replaced
                raise


def _copy_one(uri: str, path: Path, progress: Progress) -> None:
    with read_errors(uri, "read"), filesystem_for(uri).open(uri, "rb") as source, path.open("wb") as target:
        while data := source.read(_CHUNK):
            with disk_errors(path):
                progress.advance(target.write(data))


def open_staged(files: Sequence[SnapshotFile], path: Path) -> StagedFiles:
    """Return the staged files of a snapshot.

    Args:
        files: of the snapshot.
        path: of the table that ``write_staged`` made of them.
    """
    return StagedFiles(files, [table_text(path)])


def open_snapshot(
    connection: duckdb.DuckDBPyConnection, spec: GraphSpec, files: Sequence[SnapshotFile]
) -> dict[str, list[str]]:
    """Make the view ``raw`` over the snapshot's files.

    Args:
        connection: in which the view is made.
        spec: defines the format of the files and their columns.
        files: as they were planned, or staged.

    Returns:
        The types of each column of the files, by its name; nothing for staged files.

    Raises:
        InputError: a file is missing, changed since it was planned, unreadable, or lacks a column.
    """
    if isinstance(files, StagedFiles):
        texts = {field: as_text(field, "VARCHAR") for field in _chosen(spec.columns)}  # a file may be a copy
        fields = ", ".join(f"{texts.get(field, 'NULL::VARCHAR')} AS {field}" for field in FIELDS)
        _make_raw(connection, [f"SELECT {fields} FROM {table}" for table in files.tables])
        return {}
    return _open_files(connection, spec, files)[0]


def _open_files(
    connection: duckdb.DuckDBPyConnection, spec: GraphSpec, files: Sequence[SnapshotFile], *, copied: bool = False
) -> tuple[dict[str, list[str]], list[SnapshotFile]]:
    """Make the view ``raw``; ``copied``: for one copy of all rows.

    Returns:
        The types of the columns, and the files that DuckDB reads where they are.
    """
    snapshots, source = spec.snapshots, snapshot_source(spec.snapshots)
    alike: dict[Layout, list[str]] = {}
    _check_unchanged(spec, files)
    with blamed(snapshots.format):
        places = source.open(connection, snapshots, files, _chosen(spec.columns).values())
        for file in files:
            layout = _layout(connection, spec, source, file, places[file.uri])
            if layout is None:
                continue
            _check_columns(spec, source, file, layout, places[file.uri])
            alike.setdefault(layout, []).append(places[file.uri])
        scans = {layout: source.scan(snapshots, uris, layout) for layout, uris in alike.items()}
    with reading(files):  # the view is bound to the files, so their schemas are read
        fields = {layout: _fields(spec, source, layout, copied=copied) for layout in scans}
        _make_raw(connection, [f"SELECT {fields[layout]} FROM {scan}" for layout, scan in scans.items()])
    chosen = set(_chosen(spec.columns).values())
    types: dict[str, set[str]] = {}
    for layout in alike:
        for name, kind in zip(layout.columns, layout.types, strict=True):
            if kind != FOLDER or name in chosen:
                types.setdefault(name, set()).add(kind)
    in_place = [file for file in files if places[file.uri] == file.uri]
    return {name: sorted(kinds) for name, kinds in types.items()}, in_place


def open_numbered(connection: duckdb.DuckDBPyConnection, spec: GraphSpec, file: SnapshotFile) -> str:
    """Make the view ``raw`` over one file, with numbered rows.

    The snapshot is open, and the further column ``row`` counts from 1. It serves to find a bad row: a numbered CSV file
    is not read in parallel.

    Returns:
        The place from which the file is read: its URI, or the path of its text.
    """
    snapshots, source = spec.snapshots, snapshot_source(spec.snapshots)
    with blamed(snapshots.format):
        place = source.open(connection, snapshots, [file], _chosen(spec.columns).values())[file.uri]
        layout = _layout(connection, spec, source, file, place)
    if layout is None:
        connection.execute(f"CREATE OR REPLACE TEMP VIEW raw AS SELECT 1 AS row, * FROM ({_NO_ROWS})")
        return place
    fields = f"{source.row_number} AS row, {_fields(spec, source, layout)}"
    scan = source.scan(snapshots, [place], layout, numbered=True)
    connection.execute(f"CREATE OR REPLACE TEMP VIEW raw AS SELECT {fields} FROM {scan}")
    return place


@contextmanager
def reading(files: Sequence[SnapshotFile]) -> Iterator[None]:
    """Turn errors of a scan into faults of a file or store.

    The scan is one of ``raw``.

    Raises:
        InputError: a file is damaged, or was replaced.
        StorageError: the store failed while a file was read.
    """
    try:
        yield
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error as error:
        if is_disk_full(error):
            raise
        text = str(error)
        pairs = zip(files, file_names(STAGED, len(files)), strict=True)
        named = (file.uri for file, copy in pairs if _names(text, file) or f"/{copy}" in text)
        # A name may begin like another one: `000000_0` and Hive's `000000_0_copy_1`.
        uri = max(named, key=len, default=None) or _blamed_file(files, error)
        raise store_fault(uri, error) or _unreadable(uri, error) from None
    except UnicodeDecodeError as error:  # the name of a column, or a text, is not UTF-8
        raise _unreadable(files[0].uri if len(files) == 1 else "snapshot", error) from None


def _blamed_file(files: Sequence[SnapshotFile], error: duckdb.Error) -> str:
    """Return the file of an error that names none, or ``snapshot``."""
    uris = [file.uri for file in files]
    if len(uris) == 1:
        return uris[0]
    return (first_damaged(uris) if type(error) is duckdb.Error else None) or "snapshot"


def _names(text: str, file: SnapshotFile) -> bool:
    return any(name in text for name in (file.uri, file.uri.partition("://")[2], copy_name(file)) if name)


def _check_unchanged(spec: GraphSpec, files: Sequence[SnapshotFile]) -> None:
    """Refuse files that are others than planned.

    It is called before they are read, and after, as a producer may write on.
    """
    source = snapshot_source(spec.snapshots)
    with blamed(spec.snapshots.format):
        for file in files:
            source.check(file)


def _make_raw(connection: duckdb.DuckDBPyConnection, selects: Sequence[str]) -> None:
    connection.execute(f"CREATE OR REPLACE TEMP VIEW raw AS {' UNION ALL '.join(selects) or _NO_ROWS}")


def _layout(
    connection: duckdb.DuckDBPyConnection, spec: GraphSpec, source: SnapshotSource, file: SnapshotFile, place: str
) -> Layout | None:
    """Return the columns of a file; None for a file without bytes.

    Such a file has no rows.
    """
    with reading([file]):
        return source.describe(connection, spec.snapshots, file, place)


def _check_columns(spec: GraphSpec, source: SnapshotSource, file: SnapshotFile, layout: Layout, place: str) -> None:
    for field, name in _chosen(spec.columns).items():
        times = layout.columns.count(name)
        if times != 1:
            fault = "no column" if times == 0 else f"{times} columns named"
            listed = ", ".join(f"{column:.{SHOWN_CHARACTERS}}" for column in layout.columns)
            raise InputError(
                f"{file.uri}: {fault} {name!r} (columns.{field}); its columns are: {listed}"
                f"{source.hint(spec.snapshots, file, place, _chosen(spec.columns).values())}"
            )
        kind = layout.types[layout.columns.index(name)]
        check_plain(f"{file.uri}: column {name!r} (columns.{field})", kind, rounded=field == "weight")


def _chosen(columns: Columns) -> dict[str, str]:
    return {field: name for field, name in columns.model_dump().items() if name is not None}


def _fields(spec: GraphSpec, source: SnapshotSource, layout: Layout, *, copied: bool = False) -> str:
    """Return the SQL that selects ``FIELDS`` from a scan."""
    chosen, types = _chosen(spec.columns), dict(zip(layout.columns, layout.types, strict=True))
    columns = {field: (source.column(layout, name), types[name]) for field, name in chosen.items()}
    texts = {field: as_text(*column, copied=copied) for field, column in columns.items()}
    return ", ".join(f"{texts.get(field, 'NULL::VARCHAR')} AS {field}" for field in FIELDS)


def _unreadable(uri: str, error: Exception) -> InputError:
    """Return the error for a file that DuckDB cannot read.

    The first lines of DuckDB's error hold the line number, the text and the fault; those after them name options of
    DuckDB.
    """
    text, _, _ = duckdb_message(error).partition("Possible fixes:")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = [line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}..." for line in lines[:4]]
    if "not utf-8 encoded" in text:  # DuckDB suggests an encoding, which no key of a spec sets
        shown = [*(line for line in shown if not line.startswith("Possible Solution")), "write it as UTF-8"]
    if "state machine" in text:  # DuckDB gives no line for it
        shown.append("write it with one kind of line ends, and with all quotes closed")
    if _NO_PARQUET.search(text):
        shown.append(
            "no whole Parquet file; if it is text, read it as such (snapshots.format: csv or tsv; `pbg import tsv`)"
        )
    return InputError(f"{uri}: cannot be read: {'; '.join(shown)}")
