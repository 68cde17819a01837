"""Looking into a ``torch.save`` archive of unknown origin before torch does.

A pickle is a program. What plain dicts of numbers and tensors need is a small part of its language; an archive that
uses anything else is refused, and torch gets a fresh archive with nothing in it but what was looked at.
"""

from __future__ import annotations

import io
import pickletools
import re
import zipfile

from pbg_tasks.errors import FormatError

_ENTRY = re.compile(r"[^/]+/(data\.pkl|version|byteorder|data/[0-9]+)")
_IGNORED = re.compile(r"[^/]+/(\.format_version|\.storage_alignment|\.data/serialization_id)")
_MAX_PICKLE = 1 << 24  # the tensors' numbers lie outside of it
_GLOBALS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch FloatStorage",
    "torch DoubleStorage",
    "torch LongStorage",
}
_OPCODES = frozenset(
    {
        *("PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BINPERSID", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
        *("EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS"),
        *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
        *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"),
    }
)


def vetted_archive(blob: bytes, *, source: str) -> bytes:
    """Return an archive of the same content as ``blob`` that holds plain dicts, lists, numbers and tensors only.

    Raises:
        FormatError: it is no archive of torch >= 1.6, or its pickle names or does anything else. Nothing of it was
            executed.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(blob)) as archive:
            entries = _entries(archive, source)
    except (zipfile.BadZipFile, ValueError, LookupError, RuntimeError, NotImplementedError, EOFError) as error:
        raise FormatError(f"{source}: not an archive of torch.save: {str(error)[:200]}") from None
    _check_pickle(entries, source)
    return _archive(entries)


def _entries(archive: zipfile.ZipFile, source: str) -> dict[str, bytes]:
    entries: dict[str, bytes] = {}
    for info in archive.infolist():
        if _IGNORED.fullmatch(info.filename):
            continue
        found = _ENTRY.fullmatch(info.filename)
        if found is None or found[1] in entries:
            raise FormatError(f"{source}: unexpected entry {info.filename[:80]!r}; the state was not loaded")
        if info.compress_type != zipfile.ZIP_STORED:
            raise FormatError(f"{source}: entry {info.filename[:80]!r} is compressed; the state was not loaded")
        entries[found[1]] = archive.read(info)
    return entries


def _check_pickle(entries: dict[str, bytes], source: str) -> None:
    data = entries.get("data.pkl")
    if data is None or len(data) > _MAX_PICKLE:
        raise FormatError(f"{source}: its data.pkl is missing or too large; the state was not loaded")
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name not in _OPCODES:
                raise FormatError(f"{source}: pickle opcode {opcode.name} is not allowed; the state was not loaded")
            if opcode.name == "GLOBAL" and argument not in _GLOBALS:
                raise FormatError(f"{source}: pickle names {argument!s:.80}, which is not allowed; it was not loaded")
    except (ValueError, LookupError, OverflowError) as error:
        raise FormatError(f"{source}: damaged pickle: {str(error)[:200]}") from None


def _archive(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in entries.items():
            archive.writestr(f"archive/{name}", data)
    return buffer.getvalue()
