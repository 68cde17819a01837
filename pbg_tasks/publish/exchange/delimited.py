"""Vectors as text, with a name and its numbers on each line.

Numbers are written with the fewest digits that read back exactly. Text is read by Arrow's CSV parser, a few megabytes
at a time. When the parser fails, the faulty line is searched and named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from pbg_tasks.errors import FormatError
from pbg_tasks.progress import say
from pbg_tasks.publish.exchange.contents import Block

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCK_BYTES = 8 << 20
_HEAD_BYTES = 4 << 20
_DAMAGE = (pa.ArrowException, OSError, EOFError)


def number_lines(block_ND: np.ndarray, delimiter: str) -> list[str]:
    """Return each row's numbers, float32 (N, D), as text.

    Each number is the shortest decimal that reads back as the same float32.
    """
    rows, columns = block_ND.shape
    numbers = pa.array(block_ND.ravel()).cast(pa.string())
    offsets = np.arange(0, rows * columns + 1, columns, dtype=np.int32)
    lines: list[str] = pc.binary_join(pa.ListArray.from_arrays(offsets, numbers), delimiter).to_pylist()
    return lines


def first_lines(path: Path, count: int) -> list[str]:
    """Return the first lines of a text, compressed or not.

    They are without their ends, and fewer than ``count`` where the text has fewer.

    Raises:
        FormatError: it is no UTF-8 text, or a line is longer than any row of vectors is.
    """
    try:
        with pa.input_stream(path, compression="detect") as stream:
            data: bytes = stream.read(_HEAD_BYTES)
    except _DAMAGE as error:
        raise FormatError(f"{path}: cannot be read ({error}); it may be truncated") from None
    lines = data.split(b"\n")
    if len(lines) <= count and len(data) == _HEAD_BYTES:
        raise FormatError(
            f"{path}: line {len(lines)} is longer than {_HEAD_BYTES} bytes, so this is no text of vectors"
        )
    kept = lines[:count] if lines[-1] else lines[:-1][:count]
    try:
        return [line.decode().removesuffix("\r") for line in kept]
    except UnicodeDecodeError:
        raise FormatError(f"{path}: not UTF-8 text") from None


def read_lines(path: Path, *, delimiter: str, dimension: int, skip: int = 0) -> Iterator[Block]:
    """Yield vectors from lines of a name and ``dimension`` numbers.

    ``.gz``, ``.bz2`` and ``.zst`` are decompressed as they are read. Blanks may follow the last number, as
    Google's word2vec writes them.

    Args:
        path: of the text.
        delimiter: one character; a name is everything before the first one.
        dimension: D.
        skip: number of lines before the first vector.

    Raises:
        FormatError: a line, which the message names, has another form; or the text ends within compressed data.
    """
    lines = first_lines(path, skip + 1)[skip:]
    if not lines:
        return
    padded = lines[0].endswith(delimiter) and lines[0].count(delimiter) == dimension + 1
    if not padded and lines[0].count(delimiter) != dimension:
        raise _bad_line(path, delimiter, dimension, skip)
    columns = ["name", *map(str, range(dimension)), *(["end"] if padded else [])]
    try:
        with pa.input_stream(path, compression="detect") as stream, _reader(stream, columns, delimiter, skip) as reader:
            for batch in reader:
                numbers = [batch.column(index + 1).to_numpy(zero_copy_only=False) for index in range(dimension)]
                yield Block(batch.column(0).to_pylist(), np.stack(numbers, axis=1))
    except _DAMAGE as error:
        raise _bad_line(path, delimiter, dimension, skip, padded=padded, reason=error) from None
    check_end(path, path.name)


def _reader(stream: pa.NativeFile, columns: list[str], delimiter: str, skip: int) -> Any:  # noqa: ANN401 - untyped
    kinds = {name: pa.float32() for name in columns} | {"name": pa.string()}
    if columns[-1] == "end":
        kinds["end"] = pa.string()
    return csv.open_csv(
        stream,
        read_options=csv.ReadOptions(
            use_threads=False, block_size=_BLOCK_BYTES, column_names=columns, skip_rows=skip, encoding="utf8"
        ),
        parse_options=csv.ParseOptions(delimiter=delimiter, quote_char=False, double_quote=False),
        convert_options=csv.ConvertOptions(column_types=kinds, null_values=[], strings_can_be_null=False),
    )


def _bad_line(
    path: Path, delimiter: str, dimension: int, skip: int, *, padded: bool = False, reason: Exception | None = None
) -> FormatError:
    """Return the error for the first line that cannot be a vector."""
    try:
        with pa.input_stream(path, compression="detect") as stream:
            for number, line in enumerate(_lines(stream), start=1):
                problem = None if number <= skip or not line else _problem(line, delimiter, dimension, padded=padded)
                if problem:
                    return FormatError(f"{path}: line {number}: {problem}")
    except _DAMAGE as error:
        return FormatError(f"{path}: ends within its compressed data or cannot be read ({error}); it may be truncated")
    return FormatError(f"{path}: not lines of a name and {dimension} numbers ({reason})")


def _lines(stream: pa.NativeFile) -> Iterator[bytes]:
    rest = b""
    while data := stream.read(_HEAD_BYTES):
        *whole, rest = (rest + data).split(b"\n")
        yield from (line.removesuffix(b"\r") for line in whole)
        if len(rest) > _HEAD_BYTES:
            break  # no row of vectors is that long
    yield rest


def _problem(line: bytes, delimiter: str, dimension: int, *, padded: bool) -> str | None:
    try:
        fields = line.decode().split(delimiter)
    except UnicodeDecodeError as error:
        return f"not UTF-8 (byte {error.start + 1})"
    if b"\r" in line:
        return "holds a carriage return, at which many readers end a line"
    if padded:
        fields = fields[:-1]
    if len(fields) != dimension + 1:
        return f"has {len(fields)} fields, a name and {dimension} numbers are expected"
    for column, text in enumerate(fields[1:], start=2):
        try:
            pa.scalar(text).cast(pa.float32())
        except pa.ArrowException:
            return f"field {column} is {text!r:.40}, not a number"
    return None


def check_end(path: Path, source: str) -> None:
    """Report a plain text without a last line break.

    A number or name at its end may be cut.

    Args:
        path: of the text.
        source: its name in the message.
    """
    if path.suffix in {".gz", ".zst", ".bz2"}:
        return  # their checksums reveal a cut
    with path.open("rb") as file:
        file.seek(0, 2)
        if file.tell():
            file.seek(-1, 1)
            if file.read(1) != b"\n":
                say(f"{source}: the last line has no line break; the file may have been cut off")
