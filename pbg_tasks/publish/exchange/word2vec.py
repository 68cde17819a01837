"""word2vec's text and binary formats, one file for each entity type.

A file has a header ``N D``, then a name and D numbers a row. Names end at the first blank, in the binary format too, so
names with white space are refused or percent-encoded. The text has the shortest decimals that read back exactly, as
gensim writes it; the binary has little-endian float32 and no line break after a vector.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.publish.exchange.delimited import first_lines, number_lines, read_lines
from pbg_tasks.publish.exchange.names import WHITESPACE, writable
from pbg_tasks.publish.exchange.parts import Part, read_parts, text_endings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pydantic import JsonValue

    from pbg_tasks.config.exports import TextOptions
    from pbg_tasks.publish.exchange.contents import Block, Contents
    from pbg_tasks.publish.exchange.inbox import Inbox
    from pbg_tasks.publish.exchange.outbox import Outbox
    from pbg_tasks.publish.exchange.vectors import ReadOptions, Vectors

_HEADER = re.compile(r"([0-9]{1,12}) ([0-9]{1,6})\s*")


def write(contents: Contents, outbox: Outbox, options: TextOptions) -> dict[str, JsonValue]:
    """Write ``{type}.txt`` for each type.

    Raises:
        FormatError: a name has white space, or an embedding is damaged.
    """
    for rows in contents.entities.values():
        name = f"{rows.entity}.txt"
        with outbox.path(name).open("w", encoding="utf-8", newline="") as out:
            out.write(f"{len(rows)} {rows.dimension}\n")
            for block in rows.blocks():
                names = writable(block.names, WHITESPACE, escape=options.escape, form="word2vec")
                pairs = zip(names, number_lines(block.vectors, " "), strict=True)
                out.writelines(f"{name} {numbers}\n" for name, numbers in pairs)
        outbox.record(rows, name)
    return {}


def write_binary(contents: Contents, outbox: Outbox, options: TextOptions) -> dict[str, JsonValue]:
    """Write ``{type}.bin`` for each type.

    Raises:
        FormatError: a name has white space, or an embedding is damaged.
    """
    for rows in contents.entities.values():
        name = f"{rows.entity}.bin"
        with outbox.path(name).open("wb") as out:
            out.write(f"{len(rows)} {rows.dimension}\n".encode())
            for block in rows.blocks():
                names = writable(block.names, WHITESPACE, escape=options.escape, form="word2vec-bin")
                vectors = np.ascontiguousarray(block.vectors, "<f4")
                pairs = zip(names, vectors, strict=True)
                out.write(b"".join(chain.from_iterable((f"{name} ".encode(), row.data) for name, row in pairs)))
        outbox.record(rows, name)
    return {}


def read(inbox: Inbox, options: ReadOptions) -> Iterator[Vectors]:
    """Yield the vectors of each text.

    Raises:
        FormatError: a line is wrong, or the number of lines differs from that in the header.
    """
    return read_parts(inbox, options, text_endings(".txt", ".vec"), _open)


def _open(path: Path) -> Part:
    lines = first_lines(path, 1)
    header = _HEADER.fullmatch(lines[0]) if lines else None
    if header is None:
        raise FormatError(f"{path}: its first line is not 'ROWS DIMENSION', so this is not word2vec's text format")
    rows, dimension = map(int, header.groups())
    if not dimension:
        raise FormatError(f"{path}: its header says dimension 0")
    return Part(dimension, rows, _counted(path, rows, read_lines(path, delimiter=" ", dimension=dimension, skip=1)))


def _counted(path: Path, rows: int, blocks: Iterator[Block]) -> Iterator[Block]:
    found = 0
    for block in blocks:
        found += len(block.names)
        yield block
    if found != rows:
        raise FormatError(f"{path}: holds {found} vectors, its header says {rows}; it may be truncated")
