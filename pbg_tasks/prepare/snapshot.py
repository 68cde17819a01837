"""A snapshot's files as one table: ``raw(file, row, lhs, rel, rhs, weight, lhs_type, rhs_type)``, all text.

``row`` counts from 1 within a file: for CSV and TSV it is the line (quoted line breaks are not counted).
"""

from __future__ import annotations

import csv
import gzip
import io
from typing import TYPE_CHECKING, Any

import duckdb

from pbg_tasks.errors import InputError
from pbg_tasks.storage.columnar import filesystem_for, list_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pbg_tasks.config import Columns, GraphSpec, SnapshotFile, Snapshots

FIELDS = ("lhs", "rel", "rhs", "weight", "lhs_type", "rhs_type")
_DELIMITERS = {"csv": ",", "tsv": "\t"}


def quoted(text: str) -> str:
    """Return ``text`` as an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """Return ``name`` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def open_snapshot(
    connection: duckdb.DuckDBPyConnection, spec: GraphSpec, files: Sequence[SnapshotFile], *, rows: bool = False
) -> None:
    """Make the view ``raw`` over the snapshot's files.

    Args:
        connection: the view is made here.
        spec: how the files are written and which columns hold what.
        files: as they were planned.
        rows: whether ``row`` is needed (it forbids reading a file in parallel).

    Raises:
        InputError: a file is missing, changed since it was planned, unreadable, or lacks a column.
    """
    for uri in {file.uri.partition("://")[0] for file in files if "://" in file.uri}:
        _register(connection, f"{uri}://")
    selects = []
    for file in files:
        _check_unchanged(file)
        columns = _columns_of(connection, spec.snapshots, file.uri)
        selects.append(_select(spec, file.uri, columns, rows=rows))
    connection.execute("CREATE OR REPLACE TEMP VIEW raw AS " + " UNION ALL ".join(selects))


def _register(connection: duckdb.DuckDBPyConnection, scheme: str) -> None:
    filesystem = filesystem_for(scheme)
    protocol = filesystem.protocol[0] if isinstance(filesystem.protocol, tuple) else filesystem.protocol
    if not connection.filesystem_is_registered(protocol):
        connection.register_filesystem(filesystem)


def _check_unchanged(file: SnapshotFile) -> None:
    for _, size, version in list_files(file.uri):
        if (size, version) != (file.size, file.version):
            raise InputError(f"{file.uri}: changed since the run was planned; plan the snapshot again")


def _columns_of(connection: duckdb.DuckDBPyConnection, snapshots: Snapshots, uri: str) -> list[str]:
    """Return a file's column names, ``column0``... where there is no header."""
    if snapshots.format != "parquet":
        first = _first_line(uri, snapshots)
        return first if snapshots.header else [f"column{index}" for index in range(len(first))]
    try:
        described = connection.execute(f"DESCRIBE SELECT * FROM read_parquet({quoted(uri)})").fetchall()
    except duckdb.Error as error:
        raise _unreadable(uri, error) from None
    return [row[0] for row in described]


def _first_line(uri: str, snapshots: Snapshots) -> list[str]:
    delimiter = snapshots.delimiter or _DELIMITERS[snapshots.format]
    try:
        with filesystem_for(uri).open(uri, "rb") as raw, _decompressed(uri, raw) as data:
            line = data.readline(1 << 20).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{uri}, line 1: cannot be read: {error}") from None
    if not line.strip():
        raise InputError(f"{uri}, line 1: is empty; a {snapshots.format} file needs a first line")
    quoting = {"quotechar": snapshots.quote} if snapshots.quote else {"quoting": csv.QUOTE_NONE}
    (fields,) = csv.reader([line.rstrip("\r\n")], delimiter=delimiter, **quoting)
    return fields


def _decompressed(uri: str, raw: Any) -> Any:  # noqa: ANN401 - file objects of three libraries
    if uri.endswith(".gz"):
        return gzip.open(raw)
    if uri.endswith(".zst"):
        import pyarrow as pa

        return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(raw), "zstd"))
    return raw


def _select(spec: GraphSpec, uri: str, columns: list[str], *, rows: bool) -> str:
    chosen = _chosen(spec.columns)
    missing = [name for name in chosen.values() if name not in columns]
    if missing:
        raise InputError(
            f"{uri}: no column {missing[0]!r} (columns.{_field_of(chosen, missing[0])}); "
            f"its columns are: {', '.join(columns)}"
        )
    fields = [
        f"CAST({identifier(chosen[field])} AS VARCHAR) AS {field}" if field in chosen else f"NULL::VARCHAR AS {field}"
        for field in FIELDS
    ]
    number = "file_row_number + 1" if spec.snapshots.format == "parquet" else f"row_number() OVER () + {_skipped(spec)}"
    row = f"{number} AS row" if rows else "NULL::BIGINT AS row"
    return f"SELECT {quoted(uri)} AS file, {row}, {', '.join(fields)} FROM {_scan(spec.snapshots, uri, columns)}"


def _skipped(spec: GraphSpec) -> int:
    return 1 if spec.snapshots.header else 0


def _chosen(columns: Columns) -> dict[str, str]:
    return {field: name for field, name in columns.model_dump().items() if name is not None}


def _field_of(chosen: dict[str, str], column: str) -> str:
    return next(field for field, name in chosen.items() if name == column)


def _scan(snapshots: Snapshots, uri: str, columns: list[str]) -> str:
    if snapshots.format == "parquet":
        return f"read_parquet({quoted(uri)}, file_row_number=true)"
    types = ", ".join(f"{quoted(name)}: 'VARCHAR'" for name in columns)
    compression = {"gz": "gzip", "zst": "zstd"}.get(uri.rpartition(".")[2], "none")
    options = {
        "columns": f"{{{types}}}",
        "auto_detect": "false",
        "header": str(snapshots.header).lower(),
        "delim": quoted(snapshots.delimiter or _DELIMITERS[snapshots.format]),
        "quote": quoted(snapshots.quote or ""),
        "escape": quoted(snapshots.quote or ""),
        "compression": quoted(compression),
        "strict_mode": "true",
    }
    return f"read_csv({quoted(uri)}, {', '.join(f'{key}={value}' for key, value in options.items())})"


def _unreadable(uri: str, error: Exception) -> InputError:
    """Say what DuckDB found wrong with a file: its first lines hold the line number and the text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = "; ".join(lines[:3])
    return InputError(f"{uri}: cannot be read: {told}")


def reading_error(error: duckdb.Error, files: Sequence[SnapshotFile]) -> InputError:
    """Turn an error met while scanning into one that names the file."""
    text = str(error)
    uri = next((file.uri for file in files if file.uri in text or file.uri.partition("://")[2] in text), None)
    return _unreadable(uri or (files[0].uri if len(files) == 1 else "snapshot"), error)
