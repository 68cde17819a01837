"""Files of the entity path, in PBG's format.

They hold the number of entities of each partition, their names in order, and the names of the relations.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.files import parse_natural, replacing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from hashlib import _Hash as Hash
    from pathlib import Path

    import pyarrow as pa

RELATION_NAMES = "dynamic_rel_names.json"
RELATION_COUNT = "dynamic_rel_count.txt"
_BETWEEN = ",\n    "
_READ_AT_ONCE = _LONGEST = 1 << 20
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NAME = "\ud800"  # takes the place of a string; UTF-8 text cannot contain it
_NO_LIST = re.compile(rf"\^[^\[]|\[[^{_NAME}\]]|{_NAME}[^,\]]|,[^{_NAME}]|\].", re.DOTALL)
"""Pairs of tokens that cannot follow each other in a list of strings; ``^`` is the beginning of the list."""


def entity_count_file_name(entity: str, partition: int) -> str:
    """Return the file name of a partition's number of entities."""
    return f"entity_count_{entity}_{partition}.txt"


def entity_names_file_name(entity: str, partition: int) -> str:
    """Return the file name of a partition's names."""
    return f"entity_names_{entity}_{partition}.json"


def write_entity_count(directory: Path, entity: str, partition: int, count: int) -> None:
    """Write a partition's number of entities."""
    _write_count(directory / entity_count_file_name(entity, partition), count)


def read_entity_count(directory: Path, entity: str, partition: int) -> int:
    """Read a partition's number of entities.

    Raises:
        FormatError: the file is missing or holds no number.
    """
    return _read_count(directory / entity_count_file_name(entity, partition))


def write_entity_columns(directory: Path, entity: str, partition: int, columns: Iterable[pa.Array]) -> int:
    """Write a partition's names by offset; return their number.

    They are columns of text, written one at a time. Those without a character to escape take a tenth of the time.
    """
    path = directory / entity_names_file_name(entity, partition)
    return _write_pieces(path, ((len(names), _plain(names) or _quoted(names.to_pylist())) for names in columns))


def read_entity_names(directory: Path, entity: str, partition: int, *, count: int | None = None) -> list[str]:
    """Read a partition's names.

    Raises:
        FormatError: the file is missing, is not a list of strings, or has not ``count`` of them.
    """
    path = directory / entity_names_file_name(entity, partition)
    names = _read_names(path)
    if count is not None and len(names) != count:
        raise FormatError(f"{path}: holds {len(names)} names, the partition has {count} entities")
    return names


def count_names(path: Path) -> int:
    """Count the names in a file without keeping them.

    Raises:
        FormatError: the file is missing or not a JSON list of strings.
    """
    return sum(map(len, _strings(path)))


def stream_names(path: Path, digest: Hash | None = None) -> Iterator[list[str]]:
    """Yield the names in a file, some at a time.

    Args:
        path: of the file.
        digest: updated with the bytes that are read.

    Raises:
        FormatError: the file is missing or not a JSON list of strings.
    """
    for strings in _strings(path, digest):
        try:
            yield json.loads(f"[{','.join(strings)}]")
        except ValueError as error:
            raise FormatError(f"{path}: not readable JSON: {error}") from None


def _strings(path: Path, digest: Hash | None = None) -> Iterator[list[str]]:
    """Yield the quoted strings of a JSON list, some at a time."""
    last, unread = "^", ""
    with _readable(path), path.open(encoding="utf-8", newline="") as file:  # the text as it is, for its hash
        while chunk := file.read(_READ_AT_ONCE):
            if digest is not None:
                digest.update(chunk.encode())
            text = unread + chunk
            bare, quote, rest = _STRING.sub(_NAME, text).partition('"')
            unread = quote + rest  # the beginning of a string that the next chunk continues
            tokens = last + "".join(bare.split())
            if _NO_LIST.search(tokens) or len(unread) > _LONGEST:
                raise FormatError(f"{path}: not a JSON list of names")
            yield _STRING.findall(text)
            last = tokens[-1]
    if last != "]" or unread:
        raise FormatError(f"{path}: the JSON list of names is not complete")


def write_relation_names(directory: Path, names: Sequence[str], *, dynamic: bool) -> None:
    """Write the relations' names in the order of their ids.

    With dynamic relations, their number is written too.
    """
    _write_pieces(directory / RELATION_NAMES, [(len(names), _quoted(names))])
    if dynamic:
        _write_count(directory / RELATION_COUNT, len(names))


def read_relation_names(directory: Path) -> list[str]:
    """Read the relations' names.

    Raises:
        FormatError: the file is missing or not a list of strings.
    """
    return _read_names(directory / RELATION_NAMES)


def read_relation_count(directory: Path) -> int:
    """Read the number of dynamic relations.

    Raises:
        FormatError: the file is missing or holds no number.
    """
    return _read_count(directory / RELATION_COUNT)


def check_relation_count(names: Sequence[str], count: int, *, directory: str) -> None:
    """Compare the names of dynamic relations with their number.

    Args:
        names: of the relations.
        count: their number in the directory.
        directory: path or URL, for the message.

    Raises:
        FormatError: they disagree.
    """
    if len(names) != count:
        raise FormatError(
            f"{directory}/{RELATION_NAMES}: holds {len(names)} names, {RELATION_COUNT} says {count}; restore both "
            "as one import wrote them"
        )


def _write_count(path: Path, count: int) -> None:
    with replacing(path) as partial:
        partial.write_text(f"{count}\n", encoding="ascii")


def _read_count(path: Path) -> int:
    return parse_natural(_read_text(path).strip(), source=str(path))


def _write_pieces(path: Path, pieces: Iterable[tuple[int, str]]) -> int:
    """Write names as ``json.dump(list(names), file, indent=4)`` would.

    It does so without the whole list in memory.

    Args:
        path: of the file.
        pieces: numbers of names, and these as ``_quoted`` returns them.

    Returns:
        Number of the names.
    """
    count = 0
    with replacing(path) as partial, partial.open("w", encoding="ascii") as file:
        for number, text in pieces:
            if number:
                file.write(_BETWEEN if count else "[\n    ")
                file.write(text)
                count += number
        file.write("\n]" if count else "[]")
    return count


def _quoted(names: Sequence[str]) -> str:
    """Return names as JSON strings, ``_BETWEEN`` each other."""
    # Separators in place of an indentation, so that Python's fast encoder, which has no indentation, writes the names.
    return json.dumps(names, separators=(_BETWEEN, ": "))[1:-1]


def _plain(names: pa.Array) -> str | None:
    """Return names as ``_quoted`` does; None where a character is escaped."""
    import numpy as np  # here, as tasks that only move documents have no use for them
    import pyarrow as pa
    import pyarrow.compute as pc

    from pbg_tasks.formats.arrow_numbers import column, text_column

    together = pa.ListArray.from_arrays(column(np.array([0, len(names)], np.int32)), names)

    def joined(between: str) -> pa.Scalar:
        return pc.binary_join(together, text_column([between]).cast(names.type)[0])[0]

    text = np.frombuffer(joined("").as_buffer(), np.uint8)
    if not ((text >= ord(" ")) & (text <= ord("~")) & (text != ord('"')) & (text != ord("\\"))).all():
        return None
    inner = joined(f'"{_BETWEEN}"').as_py()
    return f'"{inner}"'


def _read_names(path: Path) -> list[str]:
    try:
        names = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not readable JSON: {error}") from None
    if not isinstance(names, list):
        raise FormatError(f"{path}: expected a JSON list of names, found {type(names).__name__}")
    for index, name in enumerate(names):
        if not isinstance(name, str):
            raise FormatError(f"{path}: name {index} is {name!r:.40}, not a string")
    return names


def _read_text(path: Path) -> str:
    with _readable(path):
        return path.read_text(encoding="utf-8")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not UTF-8 text (byte {error.start})") from None
