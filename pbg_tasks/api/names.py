"""Names of the entities of one type, found by a hash index.

The index takes 16 bytes a name, beside the names themselves.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pbg_tasks.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Column = Any
"""Text or whole number; or a list, numpy array, Arrow array, or column of a data frame of them."""

_NEAR_POOL = 2000  # largest number of names that are compared letter by letter for a hint
_TOLD = 3


class UnknownNameError(InputError, KeyError):
    """Error: the model lacks a name; it is a ``KeyError``, too."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError itself would show the message as a Python literal


class NameIndex:
    """Names of all partitions of a type, with a number each.

    The names are one after the other in memory. Python's own string hashes are sorted once, so a look-up of many names
    is one binary search in numpy and one comparison of text. If a name occurs twice, it has the lower number.

    Args:
        what: description of the names for messages: ``"entity of type 'user'"``.
        partitions: names of each partition, in the order of their offsets.
    """

    def __init__(self, what: str, partitions: Iterable[Sequence[str]]) -> None:
        self._what = what
        texts, hashes = [], []
        for names in partitions:
            texts.append(pa.array(names, pa.large_string()))
            hashes.append(_hashes(names))
        self._names = pa.concat_arrays(texts) if texts else pa.array([], pa.large_string())
        unsorted = np.concatenate(hashes) if hashes else np.empty(0, np.int64)
        self._order = np.argsort(unsorted, kind="stable")
        self._hashes = unsorted[self._order]

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, name: str) -> bool:
        return bool(self.find([name])[0] >= 0)

    @property
    def nbytes(self) -> int:
        """Memory of the index and names in bytes."""
        return int(self._names.nbytes + self._order.nbytes + self._hashes.nbytes)

    def names(self, numbers: np.ndarray | None = None) -> list[str]:
        """Return the names of some numbers, or all of them."""
        chosen = self._names if numbers is None else self._names.take(pa.array(numbers))
        listed: list[str] = chosen.to_pylist()
        return listed

    def find(self, names: Sequence[str]) -> np.ndarray:
        """Return the number of each name, -1 where there is none.

        The result is int64 (N,).
        """
        wanted = _hashes(names)
        place = np.searchsorted(self._hashes, wanted)
        numbers = np.full(len(names), -1, np.int64)
        left = np.arange(len(names))
        while len(left):
            left = left[place[left] < len(self._hashes)]
            left = left[self._hashes[place[left]] == wanted[left]]
            found = self._order[place[left]]
            pairs = zip(left.tolist(), self.names(found), strict=True)
            right = np.fromiter((names[i] == text for i, text in pairs), bool, len(left))
            numbers[left[right]] = found[right]
            left = left[~right]  # another name has the same hash: the wanted one may be next
            place[left] += 1
        return numbers

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """Return the number of each name: int64 (N,).

        Raises:
            UnknownNameError: one is missing; the message has the nearest names.
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

        Among many names, only those that begin or end like it are compared.
        """
        pool = (
            self._names.to_pylist() if len(self) <= _NEAR_POOL else [*self._sharing(name, 0), *self._sharing(name, 1)]
        )
        return difflib.get_close_matches(name, dict.fromkeys(pool), n=_TOLD, cutoff=0.6)

    def _sharing(self, name: str, end: int) -> list[str]:
        """Return the names that share the longest part with ``name``.

        The part is the beginning (0) or the end (1).
        """
        test = (pc.starts_with, pc.ends_with)[end]
        for length in range(len(name) - 1, 0, -max(1, len(name) // 16)):
            part = name[-length:] if end else name[:length]
            found = self._names.filter(test(self._names, pattern=part, ignore_case=True))
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


def _hashes(names: Sequence[str]) -> np.ndarray:
    return np.fromiter(map(hash, names), np.int64, len(names))
