"""Angel's folders in an import: its files one at a time, and the names of its entities' numbers."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

import numpy as np

from pbg_tasks.errors import ConfigError, FormatError, InputError
from pbg_tasks.formats.angel import read_mapping
from pbg_tasks.progress import say
from pbg_tasks.publish.exchange.contents import Block

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from types import TracebackType

    from pbg_tasks.publish.exchange.inbox import Inbox

MAPPING = "mapping"


class InboxFolder:
    """A folder of an inbox, as ``formats.angel`` reads it: a file stays until the next one is asked for.

    Args:
        inbox: holds the files.
        prefix: of their names, without a slash at the end; empty for all that lie at the top.
    """

    def __init__(self, inbox: Inbox, prefix: str) -> None:
        self._inbox, self._prefix = inbox, f"{prefix}/" if prefix else ""
        self._held, self._name = ExitStack(), ""
        self._path: Path | None = None

    @property
    def where(self) -> str:
        """The folder's URL."""
        return self._inbox.source(self._prefix).rstrip("/")

    def sizes(self) -> dict[str, int]:
        """Return each file's bytes by its name, hidden ones left out."""
        start = len(self._prefix)
        below = {name[start:]: size for name, size in self._inbox.sizes.items() if name.startswith(self._prefix)}
        return {name: size for name, size in below.items() if "/" not in name and not name.startswith(".")}

    def local(self, name: str) -> Path:
        """Return where a file is on the local disk, verified where the inbox knows its hash."""
        if self._path is None or name != self._name:
            self._held.close()
            self._path, self._name = self._held.enter_context(self._inbox.local(f"{self._prefix}{name}")), name
        return self._path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()


def of_type(inbox: Inbox, entity: str | None, found: dict[str, str]) -> dict[str, str]:
    """Return the folders that are read, by entity type.

    Args:
        inbox: told in messages.
        entity: what the user says the type is; None to read all types whose folders tell them.
        found: folders by what their names say the type is; by their name where they say nothing.

    Raises:
        InputError: there is no folder.
        ConfigError: nothing tells which folder has which type.
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


def named_blocks(
    inbox: Inbox, blocks: Iterable[tuple[np.ndarray, np.ndarray]], mappings: Iterable[str]
) -> Iterator[Block]:
    """Yield vectors with the names of their numbers; without a mapping, with the numbers' decimals.

    Args:
        inbox: holds the mapping.
        blocks: numbers int64 (n,) and vectors (n, D).
        mappings: folders in which the mapping may lie; the first that is there counts.

    Raises:
        FormatError: a number has no name, or two.
    """
    names = _names(inbox, mappings)
    for numbers, vectors in blocks:
        with np.errstate(over="ignore"):  # a double beyond float32 becomes infinite, and is refused as such
            converted = vectors.astype(np.float32, copy=False)
        if names is None:
            yield Block([str(number) for number in numbers.tolist()], converted)
            continue
        listed = [names.get(number) for number in numbers.tolist()]
        if None in listed:
            raise FormatError(f"{inbox.url}: entity {numbers[listed.index(None)]} has no line in the mapping")
        yield Block([name for name in listed if name is not None], converted)


def _names(inbox: Inbox, mappings: Iterable[str]) -> dict[int, str] | None:
    for mapping in mappings:
        with InboxFolder(inbox, mapping) as folder:
            if not any(name.startswith("part-") for name in folder.sizes()):
                continue
            names: dict[int, str] = {}
            for number, name in read_mapping(folder):
                if names.setdefault(number, name) != name:
                    raise FormatError(f"{folder.where}: entity {number} has two names, {names[number]!r} and {name!r}")
            return names
    say(f"{inbox.url}: no folder {MAPPING} beside the embeddings: entities are named by their numbers")
    return None
