"""Source of Parquet files, which are read in place."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING

from pbg_tasks.prepare.sources.base import FOLDER, Layout, SnapshotSource
from pbg_tasks.prepare.sql import parquet_rows, quoted
from pbg_tasks.storage.columnar import describe_once, filesystem_for, read_errors

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import duckdb

    from pbg_tasks.config import SnapshotFile, Snapshots

_FEWEST_ROWS, _MOST_ROWS = 1 << 14, 1 << 20
"""Rows of a row group: fewer are read slowly, and of more a task has too much in memory. DuckDB writes 122,880."""
_FOLDER = re.compile(r"/([^/=]+)=[^/]*(?=/)")
_REPEATED = re.compile(r"(.*)_\d+", re.DOTALL)
"""DuckDB's name of a column that has the name of one before it, but for upper and lower case."""
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_PATH = "path of the file"
"""Column of a scan with each row's file."""


class ParquetSource(SnapshotSource):
    """Source of the format ``parquet``.

    A folder named ``rel=likes``, as Spark's ``partitionBy`` makes it, is a column of files that have none of its name.
    """

    row_number = "file_row_number + 1"
    columnar = True

    def open(
        self,
        connection: duckdb.DuckDBPyConnection,
        snapshots: Snapshots,
        files: Sequence[SnapshotFile],
        columns: Collection[str],
    ) -> dict[str, str]:
        """Register the filesystem of the files."""
        del snapshots, columns
        _register(connection, [file.uri for file in files if "://" in file.uri])
        return {file.uri: file.uri for file in files}

    def describe(
        self, connection: duckdb.DuckDBPyConnection, snapshots: Snapshots, file: SnapshotFile, place: str
    ) -> Layout | None:
        """Read the schema of a file.

        A decimal of more digits than DuckDB's has its own type and not DOUBLE, as which DuckDB reads it: rounded. A
        repeated column has its own name and not ``lhs_1``, as DuckDB calls it, so that its reader sees two of one name.
        """
        del snapshots, file
        described = connection.execute(f"DESCRIBE SELECT * FROM {parquet_rows([quoted(place)])}").fetchall()
        names, types = zip(*(row[:2] for row in described), strict=True)
        lowered = {name.lower() for name in names}
        if any((found := _REPEATED.fullmatch(name)) and found[1].lower() in lowered for name in names):
            own = _own_names(place)
            names = tuple(own[at] if own[at] in own[:at] else name for at, name in enumerate(names))
        if "DOUBLE" in types:
            schema = f"SELECT name, precision, scale FROM parquet_schema({quoted(place)}) WHERE precision > 38"
            wide = {row[0]: f"DECIMAL({row[1]},{row[2]})" for row in connection.execute(schema).fetchall()}
            types = tuple(
                wide.get(name, kind) if kind == "DOUBLE" else kind for name, kind in zip(names, types, strict=True)
            )
        folders = [name for name in dict.fromkeys(_FOLDER.findall(place)) if name not in names]
        return Layout((*names, *folders), (*types, *[FOLDER] * len(folders)))

    def as_staged(self, connection: duckdb.DuckDBPyConnection, uris: Sequence[str]) -> bool:
        """Return whether the files have row groups that tasks read well."""
        groups = f"SELECT num_rows, num_row_groups FROM parquet_file_metadata([{', '.join(map(quoted, uris))}])"
        found = connection.execute(groups).fetchall()
        return all(count and _FEWEST_ROWS <= rows / count <= _MOST_ROWS for rows, count in found)

    def scan(self, snapshots: Snapshots, places: Sequence[str], layout: Layout, *, numbered: bool = False) -> str:
        """Return a call of DuckDB's reader."""
        del snapshots
        more = ", file_row_number=true" if numbered else ""
        more += f", filename={quoted(_PATH)}" if FOLDER in layout.types else ""
        return parquet_rows(map(quoted, places), more)

    def column(self, layout: Layout, name: str) -> str:
        """Return the SQL of a column, or of a folder's value."""
        if layout.types[layout.columns.index(name)] != FOLDER:
            return super().column(layout, name)
        pattern = quoted(f"/{re.escape(name)}=([^/]*)/")
        return f"""nullif(url_decode(regexp_extract("{_PATH}", {pattern}, 1)), '{_NO_VALUE}')"""


def _own_names(place: str) -> list[str]:
    """Return the names of a file's columns as they are in it."""
    import pyarrow.parquet as pq  # not by schedulers

    with read_errors(place, "read"), filesystem_for(place).open(place, "rb") as file:
        names: list[str] = pq.read_schema(file).names
    return names


def first_damaged(uris: Sequence[str]) -> str | None:
    """Return the first file with a damaged page; None without one.

    The files are read one after the other, as DuckDB's error of such a page, a plain ``Error``, names none.
    """
    import duckdb  # not by schedulers, which list snapshots with this module

    with closing(duckdb.connect()) as connection:
        _register(connection, [uri for uri in uris if "://" in uri])
        for uri in uris:
            try:
                connection.execute(f"SELECT bit_xor(hash(COLUMNS(*))) FROM {parquet_rows([quoted(uri)])}").fetchall()
            except duckdb.Error as error:
                if type(error) is duckdb.Error:
                    return uri
    return None


def _register(connection: duckdb.DuckDBPyConnection, uris: Sequence[str]) -> None:
    if not uris:
        return
    filesystem = describe_once(uris)
    protocol = filesystem.protocol[0] if isinstance(filesystem.protocol, tuple) else filesystem.protocol
    if not connection.filesystem_is_registered(protocol):
        connection.register_filesystem(filesystem)
