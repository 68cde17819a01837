"""Names of entities beside Angel's embeddings.

They are lines ``index:name`` in the text files of a folder ``mapping``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.angel.commit import replacing_directory
from pbg_tasks.formats.angel.records import Span
from pbg_tasks.formats.angel.text import check_uncompressed, line_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pbg_tasks.formats.angel.folder import Folder

FOLDER = "mapping"

_BREAKS = ("\n", "\r")
_MOST_DIGITS = len(str(1 << 63))


def read_mapping(folder: Folder) -> Iterator[tuple[int, str]]:
    """Yield each entity's number and name.

    Args:
        folder: with the files ``part-*`` that Spark writes.

    Raises:
        FormatError: there is no such file, one is compressed, or a line does not have a number, a colon and UTF-8 text.
    """
    sizes = folder.sizes()
    names = sorted(name for name in sizes if name.startswith("part-"))
    if not names:
        raise FormatError(f"{folder.where}: no files part-*, so no mapping of Angel's")
    check_uncompressed(names, folder.where)
    for name in names:
        where, number = f"{folder.where}/{name}", 0
        for block in line_blocks(Span(folder.local(name), 0, sizes[name], where)):
            for line in block.removesuffix(b"\n").split(b"\n"):
                number += 1
                yield _parse(line.removesuffix(b"\r"), f"{where}, line {number}")


def write_mapping(folder: Path, names: Iterable[tuple[int, str]]) -> int:
    """Write numbers and names into a folder; return their number.

    The folder appears only when it is whole.

    Raises:
        FormatError: a name holds a line break or half a character, which no line can hold.
        ConflictError: the folder is there.
        ResourceError: the disk is full.
    """
    with replacing_directory(folder) as partial:
        count = write_lines(partial / "part-00000", names)
        (partial / "_SUCCESS").touch()
    return count


def write_lines(path: Path, names: Iterable[tuple[int, str]]) -> int:
    """Write one file of a mapping; return its number of lines.

    Raises:
        FormatError: as ``write_mapping``.
    """
    count = 0
    with path.open("wb") as file:
        for number, name in names:
            file.write(b"%d:%b\n" % (number, _encoded(name)))
            count += 1
    return count


def _parse(line: bytes, where: str) -> tuple[int, str]:
    number, colon, name = line.partition(b":")
    digits = number.removeprefix(b"-")
    if not colon or not digits.isdigit() or len(digits) > _MOST_DIGITS or not -1 << 63 <= int(number) < 1 << 63:
        raise FormatError(f"{where}: expected a number, a colon and a name, found {line[:60]!r}")
    try:
        return int(number), name.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{where}: the name is no UTF-8 text (byte {error.start})") from None


def _encoded(name: str) -> bytes:
    if any(character in name for character in _BREAKS):
        raise FormatError(
            f"name {name!r:.60} holds a line break, which Angel's mapping cannot hold; export another format"
        )
    try:
        return name.encode("utf-8")
    except UnicodeEncodeError:
        raise FormatError(
            f"name {name!r:.60} holds half a character (a lone surrogate), which no text can hold"
        ) from None
