"""Reading of a ``torch.save`` archive without torch and ``pickle``.

The archive may be of unknown origin, and a pickle is a program. Plain dicts of numbers and tensors need a small part of
its language, which is interpreted here; an archive that uses any other part is refused before a step of it is taken.
Hostile bytes may still take time and memory, so blobs that no hash vouches for are read in a process with limits of
both.
"""

from __future__ import annotations

import io
import math
import pickletools
import re
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from pbg_tasks.errors import FormatError, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_ENTRY = re.compile(r"[^/]+/(data\.pkl|version|byteorder|data/[0-9]+)")
_IGNORED = re.compile(r"[^/]+/(\.format_version|\.storage_alignment|\.data/serialization_id)")
_OLD = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""Beginning of what torch before 1.6 saved: a pickle of its magic number."""
_MAX_PICKLE = 1 << 24  # bytes; the numbers of tensors are outside of the pickle
_DICT, _TENSOR = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"
_STORAGES = {"torch FloatStorage": "f4", "torch DoubleStorage": "f8", "torch LongStorage": "i8"}
_GLOBALS = {_DICT, _TENSOR, *_STORAGES}


def load_state(blob: bytes, *, source: str) -> object:
    """Return the content of an archive, with tensors as numpy arrays.

    It is made of dicts, lists, tuples, numbers, texts and tensors.

    Raises:
        FormatError: it is no archive of torch >= 1.6, its pickle names or does anything else, or it is damaged. Nothing
            of it was executed.
    """
    if blob.startswith(_OLD):
        raise FormatError(
            f"{source}: written by torch before 1.6, whose form is not read; load and save it by PBG with a later "
            "torch, or delete this dataset: vectors stay, and sums start at 0"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(blob)) as archive:
            entries = _entries(archive, source)
    except (zipfile.BadZipFile, ValueError, LookupError, RuntimeError, NotImplementedError, EOFError) as error:
        raise FormatError(f"{source}: not an archive of torch.save: {str(error)[:200]}") from None
    steps = _checked_steps(entries.pop("data.pkl", None), source)
    try:
        return _Interpreter(entries).run(steps)
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
        raise FormatError(f"{source}: not readable: {one_line(str(error))[:200]}") from None


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


def _checked_steps(data: bytes | None, source: str) -> list[tuple[str, Any]]:
    if data is None or len(data) > _MAX_PICKLE:
        raise FormatError(f"{source}: its data.pkl is missing or too large; the state was not loaded")
    steps = []
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name not in _OPCODES:
                raise FormatError(f"{source}: pickle opcode {opcode.name} is not allowed; the state was not loaded")
            if opcode.name == "GLOBAL" and argument not in _GLOBALS:
                raise FormatError(f"{source}: pickle names {argument!s:.80}, which is not allowed; it was not loaded")
            steps.append((opcode.name, argument))
    except (ValueError, LookupError, OverflowError) as error:
        raise FormatError(f"{source}: damaged pickle: {str(error)[:200]}") from None
    return steps


class _Name(str):
    """One of the five names that a pickle may use.

    A pickle's text is a plain ``str``, so that it cannot make another name.
    """

    __slots__ = ()


class _Mark:
    """Mark on the stack at the beginning of a part."""


class _Interpreter:
    """Interpreter of a pickle's steps, with a stack and a memo.

    Args:
        entries: of the archive, with the numbers of tensors.
    """

    def __init__(self, entries: Mapping[str, bytes]) -> None:
        self._entries = entries
        self._order = ">" if entries.get("byteorder") == b"big" else "<"
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, steps: list[tuple[str, Any]]) -> object:
        """Take each step; return the value that remains.

        Raises:
            LookupError, TypeError, ValueError: a step makes no sense.
        """
        for name, argument in steps:
            if name == "STOP":
                break
            _OPCODES[name](self, argument)
        (result,) = self._stack
        return result

    def skip(self, _: object) -> None:
        """Do nothing."""

    def push(self, value: object) -> None:
        """Put a value on the stack."""
        self._stack.append(value)

    def name(self, value: str) -> None:
        """Put one of the known names on the stack."""
        self._stack.append(_Name(value))

    def call(self, _: object) -> None:
        """Make an empty dict or a tensor; nothing else can be called."""
        arguments, function = self._stack.pop(), self._stack.pop()
        if type(function) is not _Name or type(arguments) is not tuple:
            raise TypeError("a call of something else than a known name")
        if function == _DICT and not arguments:
            self.push({})
        elif function == _TENSOR:
            self.push(_tensor(*arguments))
        else:
            raise TypeError(f"a call of {function} with {len(arguments)} arguments")

    def storage(self, _: object) -> None:
        """Put the numbers of a tensor on the stack."""
        kind, storage, key, _, count = self._stack.pop()
        if kind != "storage" or type(storage) is not _Name or type(key) is not str:
            raise TypeError("a reference to something else than numbers")
        numbers = np.frombuffer(self._entries[f"data/{key}"], self._order + _STORAGES[storage])
        self.push(numbers[: _natural(count)])

    def put(self, index: int) -> None:
        """Store the top of the stack in the memo."""
        self._memo[index] = self._stack[-1]

    def get(self, index: int) -> None:
        """Put a value of the memo on the stack."""
        self._stack.append(self._memo[index])

    def pop_to_mark(self) -> list[Any]:
        """Take all values from the stack down to the mark."""
        marks = (index for index in reversed(range(len(self._stack))) if self._stack[index] is _Mark)
        place = next(marks, None)
        if place is None:
            raise IndexError("no mark on the stack")
        items = self._stack[place + 1 :]
        del self._stack[place:]
        return items

    def set_items(self, items: list[Any]) -> None:
        """Add keys and values to the dict on the stack."""
        target = self._stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise TypeError("items for something else than a dict")
        target.update(zip(items[::2], items[1::2], strict=True))

    def append(self, items: list[Any]) -> None:
        """Add values to the list on the stack."""
        if type(self._stack[-1]) is not list:
            raise TypeError("values for something else than a list")
        self._stack[-1].extend(items)

    def tuple_of(self, count: int) -> None:
        """Make a tuple of the topmost values of the stack."""
        items = tuple(self._stack[-count:])
        if len(items) < count:
            raise IndexError("too few values for a tuple")
        self._stack[-count:] = [items]

    def pop(self, count: int) -> list[Any]:
        """Take some values from the stack, the lowest first."""
        return [self._stack.pop() for _ in range(count)][::-1]


_OPCODES: dict[str, Callable[[_Interpreter, Any], None]] = {
    **dict.fromkeys(("PROTO", "STOP"), _Interpreter.skip),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"), _Interpreter.push),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Interpreter.put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _Interpreter.get),
    "GLOBAL": _Interpreter.name,
    "REDUCE": _Interpreter.call,
    "BINPERSID": _Interpreter.storage,
    "NONE": lambda self, _: self.push(None),
    "NEWTRUE": lambda self, _: self.push(True),
    "NEWFALSE": lambda self, _: self.push(False),
    "MARK": lambda self, _: self.push(_Mark),
    "EMPTY_DICT": lambda self, _: self.push({}),
    "EMPTY_LIST": lambda self, _: self.push([]),
    "EMPTY_TUPLE": lambda self, _: self.push(()),
    "TUPLE": lambda self, _: self.push(tuple(self.pop_to_mark())),
    "TUPLE1": lambda self, _: self.tuple_of(1),
    "TUPLE2": lambda self, _: self.tuple_of(2),
    "TUPLE3": lambda self, _: self.tuple_of(3),
    "SETITEM": lambda self, _: self.set_items(self.pop(2)),
    "SETITEMS": lambda self, _: self.set_items(self.pop_to_mark()),
    "APPEND": lambda self, _: self.append(self.pop(1)),
    "APPENDS": lambda self, _: self.append(self.pop_to_mark()),
}


def _tensor(storage: object, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: object) -> np.ndarray:
    """Return a tensor as a view of its numbers, within their bounds.

    Raises:
        TypeError, ValueError: it would reach beyond the numbers.
    """
    if not isinstance(storage, np.ndarray) or len(shape) != len(strides):
        raise TypeError("a tensor without numbers or strides")
    last = _natural(offset) + sum((_natural(n) - 1) * _natural(step) for n, step in zip(shape, strides, strict=True))
    if math.prod(shape) and last >= len(storage):
        raise ValueError(f"a tensor of shape {shape} in a storage of {len(storage)} numbers")
    if not math.prod(shape):
        return np.empty(shape, storage.dtype)
    steps = [step * storage.itemsize for step in strides]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps, writeable=False)


def _natural(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!s:.40} where a natural number is expected")
    return value
