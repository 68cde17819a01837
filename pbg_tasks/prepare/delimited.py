"""What DuckDB does not tell of a CSV or TSV file: its first record, and the line on which a record begins."""

from __future__ import annotations

import csv
import gzip
import io
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from pbg_tasks.errors import InputError
from pbg_tasks.storage.columnar import filesystem_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.config import Snapshots

_DELIMITERS = {"csv": ",", "tsv": "\t"}
_COMPRESSIONS = {"gz": "gzip", "zst": "zstd"}


def delimiter(snapshots: Snapshots) -> str:
    """Return what stands between two fields."""
    return snapshots.delimiter or _DELIMITERS[snapshots.format]


def compression(uri: str) -> str:
    """Return DuckDB's name of the compression that a file's suffix stands for."""
    return _COMPRESSIONS.get(uri.rpartition(".")[2], "none")


def first_record(snapshots: Snapshots, uri: str) -> list[str] | None:
    """Return the fields of a file's first line; None of a file of no bytes, which has no rows where none has a header.

    Raises:
        InputError: the file cannot be read, or its first line is empty.
    """
    try:
        with _open_text(uri) as text:
            line = text.readline(1 << 20)
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{uri}, line 1: cannot be read: {error}") from None
    if not line and not snapshots.header:
        return None
    if not line.strip():
        raise InputError(f"{uri}, line 1: is empty; a {snapshots.format} file needs a first line")
    fields: list[str] = next(_reader(snapshots, [line.rstrip("\r\n")]))
    return fields


def line_of(snapshots: Snapshots, uri: str, record: int) -> int:
    """Return the line on which a record begins, both counted from 1.

    They differ because DuckDB skips empty lines and a quoted field may hold line breaks. A field too long for Python's
    reader ends the search; the record's number is the best answer then.
    """
    count, line = 0, 1
    try:
        with _open_text(uri) as text:
            reader = _reader(snapshots, text)
            for fields in reader:
                count += bool(fields)
                if count == record:
                    return line
                line = reader.line_num + 1
    except csv.Error:
        pass
    return record


def _reader(snapshots: Snapshots, lines: Any) -> Any:  # noqa: ANN401 - typeshed keeps the reader's type private
    if snapshots.quote is None:
        return csv.reader(lines, delimiter=delimiter(snapshots), quoting=csv.QUOTE_NONE)
    return csv.reader(lines, delimiter=delimiter(snapshots), quotechar=snapshots.quote)


@contextmanager
def _open_text(uri: str) -> Iterator[TextIO]:
    """Open a file as text; that it is UTF-8 is for DuckDB to check, which names the line."""
    with filesystem_for(uri).open(uri, "rb") as raw, _decompressed(uri, raw) as data:
        yield io.TextIOWrapper(data, encoding="utf-8-sig", errors="replace", newline="")


def _decompressed(uri: str, raw: Any) -> Any:  # noqa: ANN401 - file objects of three libraries
    kind = compression(uri)
    if kind == "gzip":
        return gzip.open(raw)
    if kind == "zstd":
        import pyarrow as pa

        return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(raw), "zstd"))
    return raw
