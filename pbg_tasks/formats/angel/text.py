"""Angel's text formats: one record a line, fields between separators.

Numbers are as Java writes them. A block of lines is parsed at once by Arrow. Numbers that Java accepts and Arrow does
not (``+1``, ``1.5f``, spaces, hexadecimal), or the reverse (``nan``, ``inf``), are parsed line by line, where an error
can name its line.
"""

from __future__ import annotations

import io
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from pbg_tasks.errors import ConfigError, FormatError
from pbg_tasks.formats.angel.losses import ONE_BYTE_VALUES, one_byte_loss
from pbg_tasks.formats.angel.numerals import numerals
from pbg_tasks.formats.angel.records import Format, Records
from pbg_tasks.storage.files import disk_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pbg_tasks.formats.angel.losses import OnLoss
    from pbg_tasks.formats.angel.records import Span, Style, Types

BLOCK_BYTES = 1 << 22
MAX_LINE_BYTES = 1 << 26
ENCODED_NUMBERS = 1 << 17  # the texts of a block take a few megabytes

_COMPRESSED = re.compile(r".*\.(gz|bz2|zst|deflate|snappy|lz4|lzo)")
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_REAL = re.compile(r"[+-]?(NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?", re.ASCII)
_HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?", re.ASCII)


class TextFormat(Format):
    """Format of lines of fields."""

    def __init__(self, *, by_column: bool = False, has_rows: bool = False, has_columns: bool = True) -> None:
        self.by_column, self.has_rows = by_column, has_rows
        self.has_columns = has_columns

    def decode(self, span: Span, types: Types, style: Style) -> Iterator[Records]:
        """Yield all records of a partition."""
        width = types.width if self.by_column else 1
        keys = [np.dtype(np.int32)] * self.has_rows + [types.key] * self.has_columns
        if span.length and 2 * (width + len(keys)) > span.length + 1:  # metadata may claim any width
            raise FormatError(f"{span.where}: {span.length} bytes cannot hold a line of {width} values")
        for columns in parse_lines(span, [*keys, *[types.value] * width], style.separator):
            values = columns[len(keys) :]
            yield Records(
                columns[0] if self.has_rows else None,
                columns[len(keys) - 1] if self.has_columns else None,
                np.stack(values, axis=1) if self.by_column else values[0],
            )

    def encode(self, records: Records, types: Types, style: Style) -> bytes:
        """Return the bytes of records."""
        keys = [field for field in (records.rows, records.columns) if field is not None]
        values = records.values.astype(types.value, copy=False).reshape(len(records), -1)
        six_decimals = style.six_decimals and self.has_rows and types.value == np.float64
        return format_lines(keys, values, style.separator, style.separator, six_decimals=six_decimals)


def check_separator(separator: str) -> bytes:
    """Return a separator's bytes.

    Raises:
        ConfigError: it is empty, or could be part of a number.
    """
    if not separator or not separator.isascii() or re.search(r"[0-9a-zA-Z.+\-\n\r\0]", separator):
        raise ConfigError(f"separator {separator!r}: expected ASCII characters that occur in no number or line break")
    return separator.encode("ascii")


def format_lines(
    keys: list[np.ndarray], values: np.ndarray, after_keys: str, between: str, *, six_decimals: bool = False
) -> bytes:
    """Return lines of text: the keys, then the values of each.

    Args:
        keys: integers, (n,) each.
        values: (n, D).
        after_keys: separator after a key.
        between: separator between values.
        six_decimals: see ``Style``.
    """
    after, sep = check_separator(after_keys), check_separator(between)
    parts, dimension = [], values.shape[1]
    step = max(1, ENCODED_NUMBERS // dimension)
    for start in range(0, len(values), step):
        block = np.ascontiguousarray(values[start : start + step])
        numbers = _joined(numerals(block.reshape(-1), six_decimals=six_decimals), dimension, sep)
        heads = [numerals(key[start : start + step]) for key in keys]
        lines = pc.binary_join_element_wise(*heads, numbers, after) if heads else numbers
        parts += [_joined(lines, len(block), b"\n")[0].as_buffer(), b"\n"]
    return b"".join(parts)


def _joined(texts: pa.BinaryArray, count: int, separator: bytes) -> pa.BinaryArray:
    """Join groups of ``count`` texts."""
    if count == 1:
        return texts
    offsets = np.arange(0, len(texts) + 1, count, dtype=np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(offsets, texts), separator)


def parse_lines(
    span: Span, types: list[np.dtype], separator: str, key_separator: str | None = None
) -> Iterator[list[np.ndarray]]:
    """Yield the fields of a span's lines in blocks, as arrays.

    There is one array for each field.

    Args:
        span: whole lines.
        types: of the fields.
        separator: between fields.
        key_separator: after the first field, if it is another.

    Raises:
        FormatError: a line has more or fewer fields, or a field is no number of its type.
    """
    first = 1
    for block in line_blocks(span):
        columns = _parse_block(block, types, check_separator(separator), check_separator(key_separator or separator))
        if columns is None:
            columns = _parse_one_by_one(block, types, separator, key_separator or separator, span, first)
        first += len(columns[0])
        yield columns


def check_uncompressed(names: Iterable[str], where: str) -> None:
    """Refuse files of text that Spark has compressed.

    Raises:
        FormatError: there is one, by its name.
    """
    if found := next(filter(_COMPRESSED.fullmatch, names), None):
        raise FormatError(f"{where}/{found}: is compressed, and Angel's text is read plain; unpack the files there")


def line_blocks(span: Span) -> Iterator[bytes]:
    """Yield a span's bytes in blocks of whole lines.

    Raises:
        FormatError: the file is shorter, or a line longer than 64 MiB.
    """
    rest, left = b"", span.length
    with disk_errors(span.where), span.path.open("rb") as file:
        file.seek(span.offset)
        while left:
            data = file.read(min(left, BLOCK_BYTES))
            if not data:
                raise FormatError(f"{span.where}: ends {left} bytes early")
            left -= len(data)
            whole, line_break, tail = data.rpartition(b"\n")
            if not line_break:
                rest += data
                if len(rest) > MAX_LINE_BYTES:
                    raise FormatError(f"{span.where}: a line is longer than {MAX_LINE_BYTES} bytes")
                continue
            yield rest + whole + line_break
            rest = tail
    if rest:
        yield rest


def _parse_block(
    block: bytes, types: list[np.dtype], separator: bytes, key_separator: bytes
) -> list[np.ndarray] | None:
    """Parse lines with Arrow; return None where it might differ from Java.

    That is so where Arrow cannot parse them, or would be more lenient than Java.
    """
    if b"x" in block or b"X" in block:
        return None
    if key_separator != separator:
        return None if separator in key_separator else _parse_keyed(block, types, separator, key_separator)
    if len(separator) > 1:
        if b"\x1f" in block:
            return None
        block, separator = block.replace(separator, b"\x1f"), b"\x1f"
    names = [str(index) for index in range(len(types))]
    try:
        table = csv.read_csv(
            io.BytesIO(block),
            csv.ReadOptions(use_threads=False, block_size=2 * len(block) + 64, column_names=names),
            csv.ParseOptions(delimiter=separator.decode("ascii"), quote_char=False, ignore_empty_lines=False),
            csv.ConvertOptions(
                column_types={name: pa.from_numpy_dtype(kind) for name, kind in zip(names, types, strict=True)},
                null_values=[],
                check_utf8=False,
            ),
        )
    except pa.ArrowInvalid:
        return None
    columns = [column.to_numpy() for column in table.columns]
    lenient = any(
        kind.kind == "f" and not np.isfinite(column).all() for kind, column in zip(types, columns, strict=True)
    )
    return None if lenient else columns


def _parse_keyed(
    block: bytes, types: list[np.dtype], separator: bytes, key_separator: bytes
) -> list[np.ndarray] | None:
    """Parse lines with another separator after the first field.

    That separator may occur only there, once a line.
    """
    lines = block.count(b"\n") + (not block.endswith(b"\n"))
    if block.count(key_separator) != lines:
        return None
    return _parse_block(block.replace(key_separator, separator), types, separator, separator)


def _parse_one_by_one(
    block: bytes, types: list[np.dtype], separator: str, key_separator: str, span: Span, first: int
) -> list[np.ndarray]:
    """Parse lines one after another, as Java does."""
    where = f"{span.where}, line"
    found: list[list[float]] = [[] for _ in types]
    lines = re.split(rb"\r\n|\r|\n", block)
    for number, line in enumerate(lines[: -1 if not lines[-1] else None], start=first):
        head, parted, tail = line.decode("latin-1").partition(key_separator)
        texts = [head, *(tail.split(separator) if parted else [])]
        if len(texts) != len(types):
            raise FormatError(
                f"{where} {number}: {len(texts)} fields, expected {len(types)} parted by {separator!r}: {line[:60]!r}"
            )
        for column, text, kind in zip(found, texts, types, strict=True):
            column.append(_number(text, kind, f"{where} {number}", span.on_loss))
    with np.errstate(over="ignore"):  # as in Java, a number too large for a float is infinite
        return [np.array(column, kind) for column, kind in zip(found, types, strict=True)]


def _number(text: str, kind: np.dtype, where: str, on_loss: OnLoss | None) -> float:
    """Parse a number as Java does, or one of Angel's single bytes."""
    if kind.kind == "i":
        bound = 1 << (8 * kind.itemsize - 1)
        if _INTEGER.fullmatch(text) and len(text) <= len(str(bound)) + 1 and -bound <= int(text) < bound:
            return int(text)
        raise FormatError(f"{where}: {text!r:.40} is no whole number of {8 * kind.itemsize} bits")
    bare = text.strip(" \t")
    if real := _REAL.fullmatch(bare):
        return _narrow(bare[: real.end(1)], kind)
    if _HEXADECIMAL.fullmatch(bare):
        return _hexadecimal(bare.rstrip("fFdD"))
    if bare in ONE_BYTE_VALUES:
        loss = one_byte_loss(text, where)
        if on_loss is None:
            raise FormatError(loss.message)
        on_loss(loss)
        return ONE_BYTE_VALUES[bare]
    raise FormatError(f"{where}: {text!r:.40} is no number as Java writes it (not a number is NaN, infinity Infinity)")


def _hexadecimal(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return float("-inf" if text.startswith("-") else "inf")


def _narrow(text: str, kind: np.dtype) -> float:
    """Parse a decimal number to the nearest one of its type.

    It is not first rounded to a double.
    """
    if kind == np.float32:
        with suppress(pa.ArrowInvalid):  # beyond the range of a float: infinite or zero, as for a double
            return float(pa.scalar(text.lstrip("+")).cast(pa.float32()).as_py())
    return float(text.replace("Infinity", "inf"))
