"""Names that a format cannot hold, refused or percent-encoded.

Percent-encoded names read back as they were.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO
from urllib.parse import unquote

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.files import replacing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

WHITESPACE = re.compile(r"\s")
"""Characters that names in word2vec's formats cannot have."""

TABS_AND_BREAKS = re.compile(r"[\t\n\r\ufeff]")
"""Characters that names in tab-separated text cannot have; readers drop a byte order mark at the start of a text."""

BREAKS = re.compile(r"[\n\r]")
"""Characters that a name at the end of a line cannot have."""

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_SHOWN = 60
_CHUNK = 1 << 20
_LONGEST = 1 << 26
_STRING = r'[ \t\r\n]*("[^"\\]*(?:\\.[^"\\]*)*")'
_FIRST, _NEXT = (re.compile(rf"[ \t\r\n]*{before}{_STRING}") for before in (r"\[", ","))
_EMPTY, _END = (re.compile(rf"[ \t\r\n]*{end}[ \t\r\n]*") for end in (r"\[[ \t\r\n]*\]", r"\]"))


def writable(names: Sequence[str], unsafe: re.Pattern[str], *, escape: bool, form: str) -> list[str]:
    """Return names in a form that a format can hold.

    Args:
        names: as they are.
        unsafe: matches characters that a name cannot have.
        escape: percent-encode them (and every percent sign, so that decoding is exact), instead of refusing.
        form: the format, for messages.

    Raises:
        FormatError: a name is empty, or has characters that the format cannot hold.
    """
    if "" in names:
        raise FormatError(f"an entity has an empty name, which format {form} cannot hold; export another format")
    if escape:
        pattern = re.compile(f"{unsafe.pattern}|%")
        return [pattern.sub(_encoded, name) for name in names]
    if unsafe.search("".join(names)):
        name, found = next((name, found) for name in names if (found := unsafe.search(name)))
        raise FormatError(
            f"name {name!r:.{_SHOWN}} holds {found[0]!r}, which format {form} cannot hold; give --escape, or "
            "in a spec `escape: true` of the export, to percent-encode such names, or export another format"
        )
    return list(names)


def _encoded(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode())


def decoded(names: Iterable[str], *, source: str) -> list[str]:
    """Return percent-encoded names in their original form.

    Raises:
        FormatError: one does not decode to UTF-8.
    """
    result = []
    for name in names:
        try:
            result.append(unquote(name, errors="strict") if "%" in name else name)
        except UnicodeDecodeError:
            raise FormatError(f"{source}: name {name!r:.{_SHOWN}} does not decode to UTF-8") from None
    return result


def check_unicode(names: Sequence[str], *, source: str) -> None:
    """Refuse names that are no Unicode text.

    Raises:
        FormatError: one holds half a character (a lone surrogate).
    """
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        name = next(filter(_SURROGATE.search, names))
        raise FormatError(
            f"{source}: name {name!r:.{_SHOWN}} holds half a character (a lone surrogate), which no other tool can read"
        ) from None


class NamesFile:
    """JSON list of names, one a line, that grows."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._before = file, "[\n"
        self._encode = json.JSONEncoder(ensure_ascii=False).encode

    def append(self, names: Sequence[str]) -> None:
        """Write more names."""
        for name in names:
            self._file.write(self._before + self._encode(name))
            self._before = ",\n"

    def finish(self) -> None:
        """End the list."""
        self._file.write("\n]\n" if self._before == ",\n" else "[]\n")


@contextmanager
def names_file(path: Path) -> Iterator[NamesFile]:
    """Open a new list of names.

    It gets its final name when the block ends without an error.

    Raises:
        ResourceError: the disk is full.
    """
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        names = NamesFile(file)
        yield names
        names.finish()


def json_names(path: Path) -> Iterator[str]:
    """Yield the strings of a JSON list, also from ``.gz``.

    Raises:
        FormatError: it is something else, or damaged.
    """
    text, place = "", 0
    item = _FIRST
    try:
        with _opened(path) as file:
            while len(text) - place <= _LONGEST and (chunk := file.read(_CHUNK)):
                text, place = text[place:] + chunk, 0
                while found := item.match(text, place):
                    place, item = found.end(), _NEXT
                    yield json.loads(found[1])
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not UTF-8 (byte {error.start})") from None
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"{path}: cannot be read ({error}); it may be truncated") from None
    except ValueError as error:
        raise FormatError(f"{path}: not readable JSON: {error}") from None
    if not (_EMPTY if item is _FIRST else _END).fullmatch(text, place):
        raise FormatError(f"{path}: not a JSON list of strings, or truncated: {text[place : place + _SHOWN]!r}")


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def listed_names(path: Path) -> Iterator[str]:
    """Yield the names in the file of a ``NamesFile``."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.startswith('"'):
                yield json.loads(line.rstrip(",\n"))
