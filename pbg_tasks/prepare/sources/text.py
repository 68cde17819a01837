"""Source of CSV and TSV files, read as plain local text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pbg_tasks.prepare.delimited import check_header, column_names, delimiter, first_record, likely_delimiter, line_of
from pbg_tasks.prepare.sources.base import Layout, SnapshotSource
from pbg_tasks.prepare.sql import quoted
from pbg_tasks.prepare.text_files import MAX_LINE_BYTES, plain_texts, remove_copies

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import duckdb

    from pbg_tasks.config import SnapshotFile, Snapshots


_READ_BY_ONE = 256 << 20
"""Most bytes of each of several files that one thread reads: 2 s or so."""


class TextSource(SnapshotSource):
    """Source of the formats ``csv`` and ``tsv``.

    A numbered scan is not parallel. Columns are selected by position, because a header may hold any text.
    """

    row_number = "row_number() OVER ()"

    def open(
        self,
        connection: duckdb.DuckDBPyConnection,
        snapshots: Snapshots,
        files: Sequence[SnapshotFile],
        columns: Collection[str],
    ) -> dict[str, str]:
        """Check the files, and copy compressed and remote ones."""
        del snapshots, columns
        return plain_texts(connection, files)

    def close(self, connection: duckdb.DuckDBPyConnection, files: Sequence[SnapshotFile]) -> None:
        """Remove the copies."""
        remove_copies(connection, files)

    def describe(
        self, connection: duckdb.DuckDBPyConnection, snapshots: Snapshots, file: SnapshotFile, place: str
    ) -> Layout | None:
        """Read the first line; without a header, columns are numbered."""
        del connection
        first = first_record(snapshots, file.uri, place)
        if first is None:
            return None
        check_header(snapshots, file.uri, place)
        columns = column_names(snapshots, first)
        return Layout(tuple(columns), ("VARCHAR",) * len(columns))

    def scan(self, snapshots: Snapshots, places: Sequence[str], layout: Layout, *, numbered: bool = False) -> str:
        """Return calls of DuckDB's reader, with all options given.

        One call reads more than two files a thread by a thread each, and fewer in pieces, so that row groups of a
        staged file end elsewhere. So small files are read whole by any number of threads, and others in pieces.
        """
        del numbered
        types = ", ".join(f"column{index}: 'VARCHAR'" for index in range(len(layout.columns)))
        options = {
            "columns": f"{{{types}}}",
            "auto_detect": "false",
            "header": str(snapshots.header).lower(),
            "delim": quoted(delimiter(snapshots)),
            "quote": quoted(snapshots.quote or ""),
            "escape": quoted(snapshots.quote or ""),
            "compression": quoted("none"),
            "max_line_size": str(MAX_LINE_BYTES),
            "strict_mode": "true",
        }
        at_once = 2
        if len(places) > 1 and all(map(_is_small, places)):
            options["parallel"], at_once = "false", len(places)
        given = ", ".join(f"{key}={value}" for key, value in options.items())
        starts = range(0, len(places), at_once)
        lists = [", ".join(map(quoted, places[start : start + at_once])) for start in starts]
        scans = [f"read_csv([{listed}], {given})" for listed in lists]
        return scans[0] if len(scans) == 1 else f"({' UNION ALL '.join(f'SELECT * FROM {scan}' for scan in scans)})"

    def column(self, layout: Layout, name: str) -> str:
        """Return the SQL of a column."""
        return f"column{layout.columns.index(name)}"

    def where(self, snapshots: Snapshots, file: SnapshotFile, place: str, row: int) -> str:
        """Return the line on which a row begins, for messages."""
        return f"{file.uri}, line {line_of(snapshots, place, row + snapshots.header)}"

    def hint(self, snapshots: Snapshots, file: SnapshotFile, place: str, columns: Collection[str]) -> str:
        """Return a hint about the delimiter, where it is the likely cause."""
        other = likely_delimiter(snapshots, file.uri, place, columns)
        if other is None:
            return ""
        return (
            f"; the likely cause is the delimiter, which is {delimiter(snapshots)!r}: with {other!r} all columns are "
            "there (--delimiter, or snapshots.delimiter in a graph spec)"
        )


def _is_small(place: str) -> bool:
    """Return whether one thread reads a file in little time."""
    try:
        return Path(place).stat().st_size <= _READ_BY_ONE
    except OSError:  # DuckDB reports it
        return False
