"""Connection to DuckDB within a memory budget.

It spills to scratch, and no extension is fetched from elsewhere.
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from pbg_tasks.errors import FormatError, InputError, ResourceError, StorageError
from pbg_tasks.memory.address_space import database_memory, limit_hint
from pbg_tasks.prepare.sql import table as table_text
from pbg_tasks.progress import human_seconds, say
from pbg_tasks.storage.columnar import CHANGED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from pbg_tasks.config import Resources

_REPORTED_SECONDS = 5.0
"""Seconds of a query after which, and between, lines report it."""
_COUNTED = 0.85
"""Share of a budget that DuckDB may count: it holds a sixth more while it sorts and spills. 10 M edges in buckets took
1.09 GB of 0.99 at most without it, and take 0.97; 50 M took 4.58 of 4.19, and take 3.85."""
_FULL = ("No space left", "Disk quota exceeded", "File too large")
"""Texts of the system for a full disk or quota, in DuckDB's errors."""
_RAISED = re.compile(r"^(Traceback \(most recent|At:$)", re.MULTILINE)
"""Text in DuckDB's error where an exception of the Python filesystem ended the query."""
_REPLACED = "The remote file corresponding to filename"
"""Text in it where an object is no longer the one that was opened (``s3fs.FileExpired``)."""


@contextmanager
def connect(resources: Resources, scratch: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database in ``scratch`` that keeps within ``resources.memory_gb``.

    A limit of the address space (``ulimit -v``) may leave it less; then it spills earlier.

    Raises:
        ResourceError: a query needs more memory or disk than there is, or such a limit leaves no room for a database.
    """
    memory = database_memory(int(resources.memory_gb * 1e9 * _COUNTED), resources.threads)
    try:
        with duckdb.connect(
            scratch / "prepare.duckdb",
            config={
                "memory_limit": f"{memory}B",
                "temp_directory": str(scratch / "spill"),
                "preserve_insertion_order": "true",  # names are read in the order in which their files are sorted
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                **({"threads": str(resources.threads)} if resources.threads else {}),
            },
        ) as connection:
            # A moment read as a name has one text, whatever the machine's time zone is.
            connection.execute("SET TimeZone = 'UTC'")
            # DuckDB measures the progress of a query only while its progress bar is on, even if the bar is not printed.
            connection.execute("SET enable_progress_bar = true")
            connection.execute("SET enable_progress_bar_print = false")
            connection.execute("SET progress_bar_time = 0")
            yield connection
    except duckdb.OutOfMemoryException as error:
        raise ResourceError(
            f"preparation needs more than resources.memory_gb (--memory-gb) = {resources.memory_gb} or more room in "
            f"{scratch}: {duckdb_message(error)}{limit_hint()}"
        ) from None
    except duckdb.IOException as error:
        if not is_disk_full(error):
            raise
        raise ResourceError(f"no room left in {scratch}; set PBG_SCRATCH to a larger disk") from None


def scratch_of(connection: duckdb.DuckDBPyConnection) -> Path:
    """Return the scratch directory in which a connection was opened."""
    ((spill,),) = connection.execute("SELECT current_setting('temp_directory')").fetchall()
    return Path(spill).parent


@contextmanager
def phase(connection: duckdb.DuckDBPyConnection, what: str) -> Iterator[None]:
    """Report the progress of the queries inside, and their duration.

    Short ones are not reported: the task reports its end.
    """
    started, stop = time.monotonic(), threading.Event()

    def watch() -> None:
        while not stop.wait(_REPORTED_SECONDS):
            share = connection.query_progress() / 100
            seconds = time.monotonic() - started
            eta = f", ETA {human_seconds(seconds / share * (1 - share))}" if 0 < share < 1 else ""
            say(f"{what}: {human_seconds(seconds)}, {max(share, 0):.0%} of the query{eta}")

    thread = threading.Thread(target=watch, name=what, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    seconds = time.monotonic() - started
    if seconds >= _REPORTED_SECONDS:
        say(f"{what}: done in {human_seconds(seconds)}")


def batches(query: duckdb.DuckDBPyRelation, rows: int) -> Iterator[pa.RecordBatch]:
    """Run a query and stream its rows in batches.

    A batch has at most ``rows`` rows.

    Raises:
        duckdb.OutOfMemoryException: there is no memory for them.
        duckdb.IOException: scratch has no room left.
    """
    return _as_duckdb(query.to_arrow_reader(rows))


def _as_duckdb(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Turn Arrow's errors back into DuckDB's.

    Arrow's look like faults of the file to which the rows are written.
    """
    try:
        yield from reader
    except OSError as error:
        text = str(error)
        if text.startswith("Out of Memory Error"):
            raise duckdb.OutOfMemoryException(text) from None
        if any(sign in text for sign in _FULL):
            raise duckdb.IOException(text) from None
        raise


def is_disk_full(error: duckdb.Error) -> bool:
    """Return whether a query ended because scratch has no room left."""
    return isinstance(error, duckdb.IOException) and any(sign in str(error) for sign in _FULL)


def store_fault(uri: str, error: duckdb.Error) -> InputError | StorageError | None:
    """Return the store's fault that ended a query; None without one.

    DuckDB's text puts the frames of the filesystem's exception before or after it; they are left out.

    Args:
        uri: of the file, where it is known.
        error: of the query.
    """
    if not _RAISED.search(str(error)):
        return None
    if _REPLACED in str(error):
        return InputError(f"{uri}: {CHANGED}")
    lines = [line for line in duckdb_message(error).splitlines() if line]
    text = " ".join(line for line in lines if not line.startswith((" ", "Traceback (", "At:")))
    return StorageError(f"{uri}: the store failed while it was read: {text}")


def load_table(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    columns: dict[str, str],
    path: Path | None,
    *,
    younger: Mapping[str, str] | None = None,
) -> None:
    """Make a table from one of this package in Parquet.

    It is empty where ``path`` is None.

    Args:
        connection: in which the table is made.
        table: its name.
        columns: name and SQL type of each.
        path: of the file, or as in ``sql.table``.
        younger: columns that older files lack, with the SQL value that stands for them there.

    Raises:
        FormatError: the file is missing, damaged, or lacks a column.
    """
    typed = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {table} ({typed})")
    if path is None:
        return
    with loading(path):
        source = table_text(path)
        there = {name for name, *_ in connection.execute(f"DESCRIBE FROM {source}").fetchall()}
        lacking = {name: value for name, value in (younger or {}).items() if name not in there}
        values = ", ".join(lacking.get(name, f'"{name}"') for name in columns)
        connection.execute(f"INSERT INTO {table} SELECT {values} FROM {source}")


@contextmanager
def loading(path: Path) -> Iterator[None]:
    """Turn errors inside into faults of a file or directory.

    The file or directory is one that this package wrote.

    Raises:
        FormatError: it is missing, damaged, or lacks a column.
    """
    try:
        yield
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error as error:
        if is_disk_full(error):
            raise
        raise FormatError(f"{path}: cannot be read: {duckdb_message(error)}") from None


def duckdb_message(error: Exception) -> str:
    """Return an error's text without the query that it repeats.

    The query is this package's and has no meaning for a user.
    """
    return str(error).partition("\n\nLINE ")[0]
