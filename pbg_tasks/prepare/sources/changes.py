"""Source of logs of changes: rows that add and remove edges.

A location is that of the files, local or in S3, with ``{day}`` at the place of a day's key, and ``@{snapshot}``. A
snapshot is what the changes of all days up to its key leave: of the rows of an edge the last one counts. DuckDB folds
them once a task into a Parquet file on scratch, within its memory.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import duckdb

from pbg_tasks.config import SnapshotFile
from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.config.sources import ChangesOptions
from pbg_tasks.errors import InputError, MissingSnapshotError, PbgError
from pbg_tasks.prepare.connection import duckdb_message, is_disk_full, phase, scratch_of, store_fault
from pbg_tasks.prepare.sources.base import as_text, check_plain, warn_of_fraction
from pbg_tasks.prepare.sources.parquet import ParquetSource
from pbg_tasks.prepare.sources.text import TextSource
from pbg_tasks.prepare.sql import quoted
from pbg_tasks.prepare.text_files import copy_name
from pbg_tasks.progress import say
from pbg_tasks.storage.columnar import filesystem_for, is_file, list_files, list_keys, read_errors
from pbg_tasks.storage.files import disk_errors
from pbg_tasks.storage.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from pbg_tasks.config import Snapshots
    from pbg_tasks.prepare.sources.base import SnapshotSource

_DAY = "{day}"
_READERS: dict[str, SnapshotSource] = {"parquet": ParquetSource(), "csv": TextSource(), "tsv": TextSource()}
_THREADS = 8  # that list days
_FILE, _ROW = "pbg.file", "pbg.row"
"""Columns of a folded file: place of a row's file among those of the log, and the row's number there."""


class _File(NamedTuple):
    """File of a day."""

    day: str
    part: SnapshotFile


class ChangesSource(ParquetSource):
    """Source of the format ``changes``."""

    read_options = ChangesOptions
    options: ChangesOptions = ChangesOptions()
    readers: ClassVar[Mapping[str, SnapshotSource]] = _READERS

    def parts(self, location: str, environment: Mapping[str, str] = os.environ) -> list[SnapshotFile]:
        """Return one part, whose version stands for all files."""
        found = [file.part for file in self._files(location, environment)]
        listed = "\n".join(f"{part.uri} {part.size} {part.version}" for part in found)
        digest = hashlib.sha256(listed.encode()).hexdigest()[:32]
        return [SnapshotFile(uri=location, size=sum(part.size for part in found), version=digest)]

    def keys(self, template: str, environment: Mapping[str, str] = os.environ) -> list[str]:
        """List the days that are whole, up to one that is not."""
        place = template.rpartition("@")[0]
        days = self._days(place, environment)
        whole = in_parallel(lambda day: self._is_whole(place, day, environment), days, _THREADS)
        return days[: whole.index(False)] if False in whole else days

    def open(
        self,
        connection: duckdb.DuckDBPyConnection,
        snapshots: Snapshots,
        files: Sequence[SnapshotFile],
        columns: Collection[str],
    ) -> dict[str, str]:
        """Fold each log, once a task."""
        places = {file.uri: _copy_of(connection, file) for file in files}
        for file in files:
            if not places[file.uri].exists():
                self._fold(connection, snapshots, file, tuple(columns), places[file.uri])
        return {uri: str(path) for uri, path in places.items()}

    def close(self, connection: duckdb.DuckDBPyConnection, files: Sequence[SnapshotFile]) -> None:
        """Remove the folded files."""
        for file in files:
            _copy_of(connection, file).unlink(missing_ok=True)

    def where(self, snapshots: Snapshots, file: SnapshotFile, place: str, row: int) -> str:
        """Return the file and number of a row in the log."""
        import pyarrow.parquet as pq

        del snapshots
        before = row - 1
        with pq.ParquetFile(place) as folded:
            for group in range(folded.num_row_groups):
                count = folded.metadata.row_group(group).num_rows
                if before < count:
                    found = folded.read_row_group(group, [_FILE, _ROW]).slice(before, 1).to_pylist()[0]
                    return _named(self._files(file.uri, os.environ), found[_FILE], found[_ROW])
                before -= count
        raise RuntimeError(f"{place} has no row {row}: a bug")

    def _days(self, place: str, environment: Mapping[str, str]) -> list[str]:
        return sorted(list_keys(place.replace(_DAY, "{snapshot}"), environment), key=snapshot_order)

    def _is_whole(self, place: str, day: str, environment: Mapping[str, str]) -> bool:
        """Return whether a day has the sign, or is one file."""
        head, _, tail = place.partition(_DAY)
        folder = f"{head}{day}{tail.partition('/')[0]}"
        if not self.options.complete:
            return True
        files = filesystem_for(place, environment)
        with read_errors(folder):
            one_file = folder == place.replace(_DAY, day) and is_file(files, folder)
            return one_file or is_file(files, f"{folder}/{self.options.complete}")

    def _files(self, location: str, environment: Mapping[str, str]) -> list[_File]:
        """List the files of all days up to a key, in order.

        Raises:
            MissingSnapshotError: the log has no such day, or one of them is not whole.
        """
        place, _, key = location.rpartition("@")
        days = [day for day in self._days(place, environment) if snapshot_order(day) <= snapshot_order(key)]
        if not days or days[-1] != key:
            last = (days or ["none"])[-1]
            raise MissingSnapshotError(f"{location}: the log has no day {key!r}; its last one before is {last}")
        whole = in_parallel(lambda day: self._is_whole(place, day, environment), days, _THREADS)
        if False in whole:
            raise MissingSnapshotError(
                f"{location}: day {days[whole.index(False)]} is not whole: it has no {self.options.complete}, which "
                "its producer writes last; without such signs set snapshots.options.complete to null"
            )
        listed = in_parallel(lambda day: list_files(place.replace(_DAY, day), environment), days, _THREADS)
        return [
            _File(day, SnapshotFile(uri=uri, size=size, version=version))
            for day, files in zip(days, listed, strict=True)
            for uri, size, version in files
        ]

    def _fold(
        self,
        connection: duckdb.DuckDBPyConnection,
        snapshots: Snapshots,
        file: SnapshotFile,
        columns: tuple[str, ...],
        path: Path,
    ) -> None:
        """Write what a log leaves.

        Rows are in the order of their last changes, so the same log gives the same bytes.

        Raises:
            InputError: a file is damaged or lacks a column, a row has no known change, or removes what is not there.
        """
        self.check(file)
        files, partial = self._files(file.uri, os.environ), path.with_suffix(".partial")
        fields = [f"c{number}" for number in range(len(columns))]
        edge = [field for field, name in zip(fields, columns, strict=True) if name != self.options.weight]
        try:
            texts = ", ".join(f"{field} VARCHAR" for field in fields)
            connection.execute(
                f"CREATE OR REPLACE TEMP TABLE changes (file INT, number BIGINT, change VARCHAR, {texts})"
            )
            kinds: dict[tuple[str, str], str] = {}
            for number in range(len(files)):
                for each in self._load(connection, snapshots, files, number, columns):
                    kinds.setdefault(each, files[number].part.uri)
            for (name, kind), uri in kinds.items():  # the folded file has text alone
                warn_of_fraction(f"{uri}: column {name!r}", kind)
            with phase(connection, "fold"), _reading(file.uri):
                connection.execute(
                    "CREATE OR REPLACE TEMP TABLE folded AS SELECT * EXCLUDE (next_change) FROM ("
                    "SELECT *, lag(change) OVER edge AS before, lead(change) OVER edge AS next_change FROM changes "
                    f"WINDOW edge AS (PARTITION BY {', '.join(edge)} ORDER BY file, number)) "
                    "WHERE (change = '+' AND next_change IS NULL) OR (change = '-' AND before IS DISTINCT FROM '+')"
                )
                connection.execute("DROP TABLE changes")
            self._check_removed(connection, file, files)
            chosen = ", ".join(f"{field} AS {_name(name)}" for field, name in zip(fields, columns, strict=True))
            with disk_errors(partial), _reading(file.uri):
                path.parent.mkdir(exist_ok=True)
                connection.execute(
                    f"COPY (SELECT {chosen}, file AS {_name(_FILE)}, number AS {_name(_ROW)} FROM folded "
                    f"WHERE change = '+' ORDER BY file, number) TO {quoted(str(partial))} (FORMAT parquet)"
                )
        finally:
            connection.execute("DROP TABLE IF EXISTS changes")
            connection.execute("DROP TABLE IF EXISTS folded")
        self.check(file)
        partial.replace(path)

    def _load(
        self,
        connection: duckdb.DuckDBPyConnection,
        snapshots: Snapshots,
        files: Sequence[_File],
        number: int,
        columns: tuple[str, ...],
    ) -> list[tuple[str, str]]:
        """Read one file of the log; return columns of names with types."""
        part, form = files[number].part, self.options.files
        reader, own = self.readers[form], snapshots.model_copy(update={"format": form})
        wanted = (self.options.change, *columns)
        try:
            place = reader.open(connection, own, [part], wanted)[part.uri]
            with _reading(part.uri):
                layout = reader.describe(connection, own, part, place)
                if layout is None:
                    return []
                texts, kinds = list[str](), list[tuple[str, str]]()
                for name in wanted:
                    if layout.columns.count(name) != 1:
                        raise InputError(
                            f"{part.uri}: no column {name!r}, or several; its columns are: {', '.join(layout.columns)}"
                        )
                    kind = layout.types[layout.columns.index(name)]
                    check_plain(f"{part.uri}: column {name!r}", kind, rounded=name == self.options.weight)
                    texts.append(as_text(reader.column(layout, name), kind))
                    kinds += [(name, kind)] * (name not in {self.options.change, self.options.weight})
                scan = reader.scan(own, [place], layout, numbered=True)
                connection.execute(
                    f"INSERT INTO changes SELECT {number}, {reader.row_number}, {', '.join(texts)} FROM {scan}"
                )
        finally:
            reader.close(connection, [part])
        strange = connection.execute(
            "SELECT number, change FROM changes WHERE file = ? AND (change IS NULL OR change NOT IN ('+', '-')) "
            "ORDER BY number LIMIT 1",
            [number],
        ).fetchone()
        if strange is not None:
            raise InputError(
                f"{_named(files, number, strange[0])}: column {self.options.change!r} has {strange[1]!r:.60}; a change "
                "is + or -"
            )
        return kinds

    def _check_removed(self, connection: duckdb.DuckDBPyConnection, file: SnapshotFile, files: Sequence[_File]) -> None:
        """Refuse, or count, rows that remove edges that are not there."""
        unknown = connection.execute(
            "SELECT file, number, count(*) OVER () FROM folded WHERE change = '-' ORDER BY file, number LIMIT 1"
        ).fetchone()
        if unknown is None:
            return
        at, row, count = unknown
        if self.options.unknown == "refuse":
            raise InputError(
                f"{_named(files, at, row)}: removes an edge that is not there, the first of {count}: a day before may "
                "be missing; with snapshots.options.unknown: ignore such rows are counted and left out"
            )
        say(f"{file.uri}: {count} rows remove edges that are not there; they are left out")


@contextmanager
def _reading(uri: str) -> Iterator[None]:
    """Turn DuckDB's errors about a file into one that names it.

    Raises:
        InputError: it is damaged, or was replaced.
        StorageError: the store failed while it was read.
    """
    try:
        yield
    except (PbgError, duckdb.OutOfMemoryException):
        raise
    except duckdb.Error as error:
        if is_disk_full(error):
            raise
        damaged = InputError(f"{uri}: cannot be read: {' '.join(duckdb_message(error).split()):.300}")
        raise store_fault(uri, error) or damaged from None


def _named(files: Sequence[_File], number: int, row: int) -> str:
    return f"{files[number].part.uri}, row {row}"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _copy_of(connection: duckdb.DuckDBPyConnection, file: SnapshotFile) -> Path:
    return scratch_of(connection) / "changes" / f"{copy_name(file)}.parquet"
