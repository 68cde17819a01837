"""Names of the entities of one type, found by an index."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pbg_tasks.errors import FormatError, InputError
from pbg_tasks.formats import names as file_names
from pbg_tasks.formats.name_index import NameTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Column = Any
"""Text or whole number; or a list, numpy array, Arrow array, or column of a data frame of them."""

_NEAR_POOL = 2000  # largest number of names that are compared letter by letter for a hint
_SUGGESTIONS = 3
_AT_ONCE = 1 << 16


class UnknownNameError(InputError, KeyError):
    """Error: the model lacks a name; it is a ``KeyError``, too."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError itself would show the message as a Python literal


class NameIndex:
    """Names of all partitions of a type, with a number each.

    Args:
        what: description of the names for messages: ``"entity of type 'user'"``.
        table: names, in memory or mapped from a file.
    """

    def __init__(self, what: str, table: NameTable) -> None:
        self._what, self._table = what, table

    @classmethod
    def of(cls, what: str, partitions: Iterable[Sequence[str]]) -> Self:
        """Index names of partitions, in the order of their offsets, in memory.

        Raises:
            FormatError: a name is no Unicode text.
        """
        try:
            texts = [pa.array(names, pa.large_string()) for names in partitions]
        except UnicodeEncodeError as error:
            raise FormatError(
                f"an {what} has a name that is no Unicode text ({error.reason}): {error.object!r:.60}"
            ) from None
        return cls(what, NameTable.of(pa.concat_arrays(texts) if texts else pa.array([], pa.large_string())))

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, name: str) -> bool:
        return bool(self.find([name])[0] >= 0)

    def digest(self) -> bytes:
        """Return a hash of the names in their order."""
        return self._table.digest()

    def names(self, numbers: np.ndarray | None = None) -> list[str]:
        """Return the names of some numbers, or all of them.

        Raises:
            InputError: there is no such number.
            FormatError: the file of the index is damaged.
        """
        wanted = np.arange(len(self)) if numbers is None else np.asarray(numbers, np.int64)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise InputError(f"entities have the numbers 0 to {len(self) - 1}, got {wanted.min()} to {wanted.max()}")
        listed: list[str] = []
        for start in range(0, len(wanted), _AT_ONCE):
            listed += self._table.names(wanted[start : start + _AT_ONCE]).to_pylist()
        return listed

    def find(self, names: Sequence[str]) -> np.ndarray:
        """Return the number of each name, -1 where there is none.

        The result is int64 (N,). A name that occurs twice has the lower number.

        Raises:
            FormatError: the file of the index is damaged.
        """
        return self._table.find(names)

    def prefixed(self, prefix: str, limit: int | None = None) -> list[str]:
        """Return names with a prefix, in the order of their bytes."""
        return self.names(self._table.prefixed(prefix, limit))

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """Return the number of each name: int64 (N,).

        Raises:
            UnknownNameError: one is missing; the message has the nearest names.
            FormatError: the file of the index is damaged.
        """
        numbers = self.find(names)
        if (numbers < 0).any():
            raise self.unknown(names[int(np.argmin(numbers))])
        return numbers

    def unknown(self, name: str) -> UnknownNameError:
        """Return the error for a name that is missing."""
        near = self.near(name)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {len(self)} names"
        return UnknownNameError(f"no {self._what} is named {name!r}; {hint}")

    def near(self, name: str) -> list[str]:
        """Return a few names like ``name``.

        Among many names, only those that begin or end like it are compared; in a large index, those that begin so.
        """
        name = name.encode(errors="replace").decode()  # Arrow takes no half of a surrogate pair
        if len(self) <= _NEAR_POOL:
            pool = self.names()
        elif len(self) < file_names.INDEXED_FROM:
            everything = self._table.names(np.arange(len(self)))
            pool = [*_sharing(everything, name, 0), *_sharing(everything, name, 1)]
        else:
            pool = self._beginning(name)
        return difflib.get_close_matches(name, dict.fromkeys(pool), n=_SUGGESTIONS, cutoff=0.6)

    def _beginning(self, name: str) -> list[str]:
        """Return the names that share the longest beginning with ``name``."""
        for length in _lengths(name):
            part = name[:length]
            spelled = dict.fromkeys([part, part.lower(), part.upper(), part.capitalize()])
            if pool := [found for each in spelled for found in self.prefixed(each, _NEAR_POOL)]:
                return pool
        return []


def _lengths(name: str) -> range:
    return range(len(name) - 1, 0, -max(1, len(name) // 16))


def _sharing(names: pa.Array, name: str, end: int) -> list[str]:
    """Return the names that share the longest part with ``name``.

    The part is the beginning (0) or the end (1).
    """
    test = (pc.starts_with, pc.ends_with)[end]
    for length in _lengths(name):
        part = name[-length:] if end else name[:length]
        found = names.filter(test(names, pattern=part, ignore_case=True))
        if len(found):
            return list(found.slice(0, _NEAR_POOL).to_pylist())
    return []


def as_names(value: Column) -> tuple[list[str], bool]:
    """Return names as texts, and whether there was a single one.

    Whole numbers stand for their decimal text, as in the training of edges.

    Args:
        value: a text or whole number, or a list, numpy array, Arrow array, or column of a data frame of them.

    Raises:
        InputError: one of them is neither text nor a whole number.
    """
    if isinstance(value, str | int | np.integer):
        return [_text(value)], True
    return [_text(item) for item in _as_list(value)], False


def as_numbers(value: Column) -> np.ndarray:
    """Return numbers of entities: int64 (N,).

    Raises:
        InputError: one of them is no whole number.
    """
    try:
        numbers = np.atleast_1d(np.asarray(value))
    except ValueError:  # lists of several lengths
        numbers = np.array([None])
    if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
        raise InputError(f"numbers of entities are whole numbers or a list of them, not {value!r:.40}")
    return numbers.astype(np.int64)


def as_bags(value: Column) -> tuple[list[tuple[str, ...]], bool]:
    """Return bags of features, and whether there was a single one.

    Each bag is a featurized entity.

    Args:
        value: a tuple of features or one feature; or a list (or array, or column) of such.

    Raises:
        InputError: a feature is neither text nor a whole number.
    """
    if isinstance(value, tuple):
        return [tuple(_text(item) for item in value)], True
    if isinstance(value, str | int | np.integer):
        return [(_text(value),)], True
    listed = _as_list(value)
    return [tuple(map(_text, item)) if isinstance(item, list | tuple) else (_text(item),) for item in listed], False


def _as_list(value: Column) -> list[Any]:
    for convert in ("to_pylist", "tolist", "to_list"):
        if hasattr(value, convert):
            value = getattr(value, convert)()
            break
    if isinstance(value, list | tuple):
        return list(value)
    raise InputError(f"expected a name or a list of names, got {type(value).__name__}")


def _text(value: Any) -> str:  # noqa: ANN401 - whatever a list holds
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(int(value))
    raise InputError(f"a name is a text or a whole number, not {value!r:.40}")
