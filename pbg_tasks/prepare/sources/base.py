"""Protocol of snapshot sources, from which DuckDB reads edges.

A snapshot is a list of parts: files with a size and a version tag, or versions of a table, whose location and version
id take the place of a file's. A part is named in the run spec, so that all tasks of a night read the same edges.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pbg_tasks.config import SnapshotFile
from pbg_tasks.config.base import Options
from pbg_tasks.errors import InputError
from pbg_tasks.progress import say
from pbg_tasks.storage.columnar import CHANGED, list_files, list_keys

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import duckdb

    from pbg_tasks.config import Snapshots

FOLDER = "FOLDER"
"""Type of a column whose value is in the path of a file: ``likes`` in ``rel=likes/part-0.parquet``."""
_Piece = TypeVar("_Piece")
SHOWN_CHARACTERS = 200
"""Most characters of a type or line that a message shows."""
# Types whose values have one text each, by DuckDB's names. Bytes (BLOB, BIT), which would be cast to an escaped form,
# nested types, and decimals of more than 38 digits, which DuckDB rounds, are left out.
_IS_PLAIN = re.compile(
    rf"{FOLDER}|VARCHAR|JSON|UUID|BOOLEAN|FLOAT|DOUBLE|U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?"
    r"|DECIMAL\(([12]?\d|3[0-8]),.*\)|ENUM\(.*\)|\"?NULL\"?|INTERVAL|DATE|TIME[A-Z_]*( WITH TIME ZONE)?"
)


class Share(SnapshotFile):
    """Share of a part, where several tasks read one.

    Attributes:
        number: of the share, from 0.
        count: shares of the part.
    """

    number: int
    count: int


def shared(pieces: Sequence[_Piece], file: SnapshotFile) -> Sequence[_Piece]:
    """Return the pieces of a part: those of a share, or all."""
    return pieces[file.number :: file.count] if isinstance(file, Share) else pieces


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns that parts of one scan have in common.

    Attributes:
        columns: names.
        types: DuckDB's type of each; text of a CSV or TSV file; ``FOLDER``.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]


def as_text(column: str, kind: str, *, copied: bool = False) -> str:
    """Return the SQL of a column as text.

    Empty text is null, and NaN, as which pandas and others store a missing value among floats.

    A Parquet file's statistics leave NaN out, and older writers' order text by bytes with a sign. DuckDB decides
    isnan(), comparisons and joins by them, without the rows, but not those of a CASE.

    Args:
        column: its SQL.
        kind: its type, by DuckDB's name.
        copied: every row is copied, by no such decision; empty text stays, and so do the bytes of a staged file.
    """
    text = f"CAST({column} AS VARCHAR)"
    if kind in {"FLOAT", "DOUBLE"}:
        return f"CASE WHEN NOT contains({text}, 'nan') THEN {text} END"
    return f"CASE WHEN strlen({text}) > 0 THEN {text} END" if kind == "VARCHAR" and not copied else text


def warn_of_fraction(column: str, kind: str) -> None:
    """Warn of names that are numbers with a fraction.

    pandas makes them of whole numbers where one is missing, so that 7 has another name.

    Args:
        column: of the names, with its file, for the message.
        kind: its type, by DuckDB's name.
    """
    if kind in {"DOUBLE", "FLOAT"}:
        say(f"warning: {column} is of type {kind}: 7 becomes the name '7.0'; write whole numbers or text")


def check_plain(column: str, kind: str, *, rounded: bool) -> None:
    """Refuse a column whose values have no one text each.

    Args:
        column: its file and name, for the message.
        kind: its type, by DuckDB's name.
        rounded: whether its numbers may be rounded, as those of a weight, which is a float32.

    Raises:
        InputError: it is one of bytes, lists or the like.
    """
    if not (rounded and kind.startswith("DECIMAL")) and not _IS_PLAIN.fullmatch(kind):
        raise InputError(
            f"{column} is of type {kind:.{SHOWN_CHARACTERS}}, which stands for no one text; write it as strings or "
            "numbers"
        )


class SnapshotSource:
    """Base of snapshot sources, whose only state is their options.

    ``SnapshotFile`` is a part: ``uri`` is its location, ``version`` changes with its rows, ``size`` is its bytes or 0.

    Attributes:
        row_number: SQL of a row's number in a numbered scan, from 1.
        columnar: whether a scan of few columns reads only these.
        read_options: declares the keys of ``snapshots.options``.
        options: those of the graph spec, of the class ``read_options``.
    """

    row_number: ClassVar[str]
    columnar: ClassVar[bool] = False
    read_options: ClassVar[type[Options]] = Options
    options: Any = Options()

    def parts(self, location: str, environment: Mapping[str, str] = os.environ) -> list[SnapshotFile]:
        """List the parts of a snapshot.

        The location of a part gives this part again.

        Args:
            location: of the snapshot or of a part.
            environment: variables with the store's endpoint and credentials.

        Raises:
            MissingSnapshotError: the snapshot is not there yet; a night that the calendar began waits for it.
            InputError: the location has no part.
            AccessError: reading is not permitted.
            StorageError: the store cannot be reached.
        """
        found = list_files(location, environment)
        return [SnapshotFile(uri=uri, size=size, version=version) for uri, size, version in found]

    def keys(self, template: str, environment: Mapping[str, str] = os.environ) -> list[str]:
        """List the values of ``{snapshot}`` in a location.

        A source that overrides ``parts`` overrides this too, if its snapshots can be listed. They are whole then, so
        that ``nights.watch`` waits for no sign.

        Args:
            template: of the location.
            environment: variables with the store's endpoint and credentials.

        Raises:
            AccessError: reading is not permitted.
            StorageError: the store cannot be reached.
        """
        return list_keys(template, environment)

    def check(self, file: SnapshotFile) -> None:
        """Refuse a part that differs from the planned one.

        Raises:
            InputError: it has changed, or is gone.
        """
        if [(found.size, found.version) for found in self.parts(file.uri)] != [(file.size, file.version)]:
            raise InputError(f"{file.uri}: {CHANGED}")

    def pieces(self, file: SnapshotFile) -> Sequence[str]:
        """List the data files of a part, always in one order.

        Tasks of a cluster each read a ``Share`` of them. Without any, one task reads the part.

        Raises:
            InputError: the part is damaged.
        """
        del file
        return ()

    def open(
        self,
        connection: duckdb.DuckDBPyConnection,
        snapshots: Snapshots,
        files: Sequence[SnapshotFile],
        columns: Collection[str],
    ) -> dict[str, str]:
        """Make parts readable, once a task.

        A source registers a filesystem, or copies the parts to scratch.

        Args:
            connection: that reads them.
            snapshots: their format.
            files: the parts.
            columns: that are read.

        Returns:
            The place from which DuckDB reads each part, by the part's URI.

        Raises:
            InputError: a part is damaged.
        """
        raise NotImplementedError

    def close(self, connection: duckdb.DuckDBPyConnection, files: Sequence[SnapshotFile]) -> None:
        """Remove copies from scratch that are not read again."""

    def describe(
        self, connection: duckdb.DuckDBPyConnection, snapshots: Snapshots, file: SnapshotFile, place: str
    ) -> Layout | None:
        """Return the columns of a part; None for a part without bytes.

        Raises:
            duckdb.Error: the part is damaged.
        """
        raise NotImplementedError

    def as_staged(self, connection: duckdb.DuckDBPyConnection, uris: Sequence[str]) -> bool:
        """Return whether files of text need not be written again.

        Args:
            connection: that reads them where they are.
            uris: of the files.

        Raises:
            duckdb.Error: a file is damaged.
        """
        del connection, uris
        return False

    def scan(self, snapshots: Snapshots, places: Sequence[str], layout: Layout, *, numbered: bool = False) -> str:
        """Return the SQL of a table of parts with one layout.

        Args:
            snapshots: their format.
            places: that DuckDB reads.
            layout: of all.
            numbered: whether ``row_number`` is also needed; then there is one part.
        """
        raise NotImplementedError

    def column(self, layout: Layout, name: str) -> str:
        """Return the SQL of a column."""
        del layout
        return '"' + name.replace('"', '""') + '"'

    def where(self, snapshots: Snapshots, file: SnapshotFile, place: str, row: int) -> str:
        """Return the name of a row in messages, numbered from 1."""
        del snapshots, place
        return f"{file.uri}, row {row}"

    def hint(self, snapshots: Snapshots, file: SnapshotFile, place: str, columns: Collection[str]) -> str:
        """Return a likely cause of a missing column, or an empty text."""
        del snapshots, file, place, columns
        return ""
