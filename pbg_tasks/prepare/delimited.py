"""Facts about CSV and TSV files that DuckDB does not report.

They are a file's first record, and the line on which a record begins.
"""

from __future__ import annotations

import csv
import io
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pbg_tasks.errors import InputError
from pbg_tasks.prepare.text_files import MAX_LINE_BYTES, line_too_long

if TYPE_CHECKING:
    from collections.abc import Collection

    from pbg_tasks.config import Snapshots

_DELIMITERS = {"csv": ",", "tsv": "\t"}
_COMMON = ("\t", ",", ";", "|", " ")


def delimiter(snapshots: Snapshots) -> str:
    """Return the delimiter of two fields."""
    return snapshots.delimiter or _DELIMITERS[snapshots.format]


def first_record(snapshots: Snapshots, uri: str, place: str) -> list[str] | None:
    """Return the fields of a file's header, or of its first record.

    A header is one line; a record without one may hold line breaks in quotes. None is returned for a file of no bytes
    without a header, which has no rows.

    Args:
        snapshots: format of the file.
        uri: of the file, for messages.
        place: path of its text.

    Raises:
        InputError: the file cannot be read, or its first line is empty, too long or not UTF-8.
    """
    try:
        with _open_text(place) as text:
            line = text.readline(MAX_LINE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{uri}, line 1: cannot be read: {error}") from None
    if len(line) > MAX_LINE_BYTES:
        raise line_too_long(uri, 1)
    if not line and not snapshots.header:
        return None
    if not line.strip():
        wanted = "the names of its columns" if snapshots.header else "an edge"
        raise InputError(f"{uri}, line 1: is empty; write {wanted} there, or remove the file")
    if "\0" in line:
        raise InputError(f"{uri}, line 1: holds NUL characters, as text in UTF-16 does; write it as UTF-8")
    fields: list[str] = next(_reader(snapshots, [line.rstrip("\r\n")]))
    if not snapshots.header:
        with suppress(csv.Error), _open_text(place) as text:  # a quote that does not end is DuckDB's to report
            # No more than DuckDB takes for a record: one of quoted line breaks may be the whole file.
            fields = next(_reader(snapshots, io.StringIO(text.read(MAX_LINE_BYTES), newline="")))
    return fields


def check_header(snapshots: Snapshots, uri: str, place: str) -> None:
    """Refuse a header with a quote that encloses no whole name.

    DuckDB would take rows up to the next quote, or all of them, for a part of the header, and report nothing.

    Args:
        snapshots: format of the file.
        uri: of the file, for messages.
        place: path of its text, whose first line was read.

    Raises:
        InputError: the file has such a header. One without a delimiter is left to the check of the columns.
    """
    if snapshots.quote is None or not snapshots.header:
        return
    with Path(place).open(encoding="utf-8", errors="replace", newline="") as text:
        line = text.readline().rstrip("\r\n")  # with a byte order mark, after which DuckDB takes a quote for text
    quote, between = re.escape(snapshots.quote), re.escape(delimiter(snapshots))
    before, after = ("", "") if delimiter(snapshots) == " " else (" ?", " *")
    name = rf"(?:{before}{quote}(?:[^{quote}]|{quote}{quote})*{quote}{after}|(?!{before}{quote})[^{between}]*)"
    if delimiter(snapshots) in line and not re.fullmatch(rf"{name}(?:{between}{name})*", line):
        raise InputError(
            f"{uri}, line 1: a {snapshots.quote} of the header encloses no whole name of this line, so the rows after "
            f"it would pass for one; mend it, or set snapshots.quote or a delimiter other than {delimiter(snapshots)!r}"
        )


def column_names(snapshots: Snapshots, first: list[str]) -> list[str]:
    """Return the names of a file's columns.

    They are its first record, or ``column0`` and so on without a header.
    """
    return first if snapshots.header else [f"column{index}" for index in range(len(first))]


def likely_delimiter(snapshots: Snapshots, uri: str, place: str, wanted: Collection[str]) -> str | None:
    """Return a common delimiter that fits the wanted columns, if any.

    With it, a file's first line has each wanted column once.

    Args:
        snapshots: assumed format of the file.
        uri: of the file, for messages.
        place: path of its text.
        wanted: names of columns.
    """
    for other in _COMMON:
        changed = snapshots.model_copy(update={"delimiter": other})
        names = column_names(changed, first_record(changed, uri, place) or [])
        if other != delimiter(snapshots) and all(names.count(name) == 1 for name in wanted):
            return other
    return None


def line_of(snapshots: Snapshots, place: str, record: int) -> int:
    """Return the line on which a record begins.

    Both are counted from 1. They differ because DuckDB skips empty lines and a quoted field may hold line breaks. A
    field too long for Python's reader ends the search; then the record's number is the best answer.

    Args:
        snapshots: format of the file.
        place: path of its text.
        record: number of the record.
    """
    count, line = 0, 1
    try:
        with _open_text(place) as text:
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
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))  # a line may be one field
    if snapshots.quote is None:
        return csv.reader(lines, delimiter=delimiter(snapshots), quoting=csv.QUOTE_NONE)
    return csv.reader(lines, delimiter=delimiter(snapshots), quotechar=snapshots.quote)


def _open_text(place: str) -> TextIO:
    """Open a file as text.

    DuckDB checks that it is UTF-8, and names the line where it is not.
    """
    return Path(place).open(encoding="utf-8-sig", errors="replace", newline="")
