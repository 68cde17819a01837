"""Angel's folders in an import, and the names of its entities.

The files are read one at a time. In Angel's files entities have numbers.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pbg_tasks.errors import ConfigError, FormatError, InputError
from pbg_tasks.formats.angel import read_mapping
from pbg_tasks.progress import say
from pbg_tasks.publish.exchange.contents import Block
from pbg_tasks.publish.exchange.delimited import check_end

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pbg_tasks.publish.exchange.inbox import Inbox

MAPPING = "mapping"

_MAPPING_LINES = 1 << 16  # lines that are held as objects at a time


class InboxFolder:
    """Folder of an inbox, for ``formats.angel``.

    A file stays on the local disk until the next one is requested.

    Args:
        inbox: holds the files.
        prefix: of their names, without a slash at the end; empty for all files at the top.
        lines: whether they are text, of which no metadata has the length.
    """

    def __init__(self, inbox: Inbox, prefix: str, *, lines: bool = False) -> None:
        self._inbox, self._prefix = inbox, f"{prefix}/" if prefix else ""
        self._lines = lines
        self._held, self._name = ExitStack(), ""
        self._path: Path | None = None

    @property
    def where(self) -> str:
        """URL of the folder."""
        return self._inbox.source(self._prefix).rstrip("/")

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file by its name, without hidden ones."""
        start = len(self._prefix)
        below = {name[start:]: size for name, size in self._inbox.sizes.items() if name.startswith(self._prefix)}
        return {name: size for name, size in below.items() if "/" not in name and not name.startswith(".")}

    def local(self, name: str) -> Path:
        """Return the local path of a file.

        The file is verified where the inbox has its hash.
        """
        if self._path is None or name != self._name:
            self._held.close()
            self._path, self._name = self._held.enter_context(self._inbox.local(f"{self._prefix}{name}")), name
            if self._lines:
                check_end(self._path, self._inbox.source(f"{self._prefix}{name}"))
        return self._path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()


def of_type(inbox: Inbox, entity: str | None, found: dict[str, str]) -> dict[str, str]:
    """Return the folders to read, by entity type.

    Args:
        inbox: for messages.
        entity: type that the user names; None to read all types that folders have in their names.
        found: folders by the type in their names; by the name where it contains no type.

    Raises:
        InputError: there is no folder.
        ConfigError: the type of a folder is not known.
    """
    if not found:
        raise InputError(f"{inbox.url}: holds no embeddings of Angel's; name a model, or a folder of embeddings")
    if entity is None:
        if "" in found:
            raise ConfigError(f"{inbox.url}: nothing here tells the entity type of the vectors; give --type")
        return found
    if entity in found:
        return {entity: found[entity]}
    if len(found) > 1:
        raise ConfigError(
            f"{inbox.url}: holds embeddings of {', '.join(sorted(found))}, none of {entity!r}; name one's folder"
        )
    return {entity: next(iter(found.values()))}


def by_type(folders: Iterable[tuple[str, str]], inbox: Inbox) -> dict[str, str]:
    """Return folders by entity type, from pairs of both.

    Raises:
        ConfigError: two have the same type.
    """
    found: dict[str, str] = {}
    for entity, folder in folders:
        if found.setdefault(entity, folder) != folder:
            raise ConfigError(
                f"{inbox.url}: {found[entity]} and {folder} both hold embeddings of {entity!r}; name one of them"
            )
    return found


def named_blocks(
    inbox: Inbox, blocks: Iterable[tuple[np.ndarray, np.ndarray]], mappings: Iterable[str]
) -> Iterator[Block]:
    """Yield vectors with names instead of numbers.

    Without a mapping, a name is the decimal text of the number.

    Args:
        inbox: holds the mapping.
        blocks: numbers int64 (n,) and vectors (n, D).
        mappings: folders in which the mapping may be; the first one that exists counts.

    Raises:
        FormatError: a number has no name, or two; or a folder of a mapping has no file of these names.
    """
    names = _names(inbox, tuple(mappings))
    for numbers, vectors in blocks:
        with np.errstate(over="ignore"):  # a double beyond float32 becomes infinite, which is refused later
            converted = vectors.astype(np.float32, copy=False)
        yield Block([str(number) for number in numbers.tolist()] if names is None else names.of(numbers), converted)


def _names(inbox: Inbox, mappings: tuple[str, ...]) -> _Names | None:
    for mapping in mappings:
        with InboxFolder(inbox, mapping, lines=True) as folder:
            if any(name.startswith("part-") for name in folder.sizes()):
                return _Names(read_mapping(folder), folder.where)
    if any(name.startswith(f"{mapping}/") for mapping in mappings for name in inbox.names):
        raise FormatError(
            f"{inbox.source(mappings[0])}: no files part-*, so no names of these entities; restore them, or import "
            "the folder of the vectors alone, which names entities by their numbers"
        )
    say(f"{inbox.url}: no folder {MAPPING} beside the embeddings: entities are named by their numbers")
    return None


class _Names:
    """Names by number, which take little more memory than their bytes.

    Args:
        pairs: numbers and names; a pair may occur twice.
        where: name of the mapping in errors.

    Raises:
        FormatError: a number has two names.
    """

    def __init__(self, pairs: Iterator[tuple[int, str]], where: str) -> None:
        numbers, names = [np.empty(0, np.int64)], [pa.array([], pa.large_string())]
        while batch := list(islice(pairs, _MAPPING_LINES)):
            numbers.append(np.array([number for number, _ in batch], np.int64))
            names.append(pa.array([name for _, name in batch], pa.large_string()))
        unordered = np.concatenate(numbers)
        order = np.argsort(unordered, kind="stable")
        self._where, self._numbers = where, unordered[order]
        self._names = pa.concat_arrays(names).take(pa.array(order))
        self._check_distinct()

    def of(self, numbers: np.ndarray) -> list[str]:
        """Return the names of numbers.

        Raises:
            FormatError: a number has no name.
        """
        places = np.searchsorted(self._numbers, numbers)
        known = places < len(self._numbers)
        known[known] = self._numbers[places[known]] == numbers[known]
        if not known.all():
            raise FormatError(f"{self._where}: entity {numbers[np.argmin(known)]} has no line in the mapping")
        names: list[str] = self._names.take(pa.array(places)).to_pylist()
        return names

    def _check_distinct(self) -> None:
        places = np.flatnonzero(self._numbers[1:] == self._numbers[:-1])
        one, other = (self._names.take(pa.array(places + step)) for step in (0, 1))
        first = pc.index(pc.not_equal(one, other), value=True).as_py()
        if first >= 0:
            raise FormatError(
                f"{self._where}: entity {self._numbers[places[first]]} has two names, {one[first].as_py()!r:.60} and "
                f"{other[first].as_py()!r:.60}"
            )
