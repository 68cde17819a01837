"""Reading of a type's vectors from one file or several.

The vectors of several files follow each other.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pbg_tasks.errors import FormatError
from pbg_tasks.publish.exchange.vectors import Vectors
from pbg_tasks.storage.staging import named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pbg_tasks.publish.exchange.contents import Block
    from pbg_tasks.publish.exchange.inbox import Inbox
    from pbg_tasks.publish.exchange.vectors import ReadOptions

Item = TypeVar("Item")

_COMPRESSIONS = ("", ".gz", ".bz2", ".zst")  # Arrow finds out by the name


class Part(NamedTuple):
    """Vectors of one file.

    Attributes:
        dimension: of each.
        total: number of them; None when the file does not have it.
        blocks: names with float32 rows.
    """

    dimension: int
    total: int | None
    blocks: Iterator[Block]


def text_endings(*endings: str) -> tuple[str, ...]:
    """Return endings of names, plain and of each compression."""
    return tuple(f"{ending}{packed}" for packed in _COMPRESSIONS for ending in endings)


def read_parts(
    inbox: Inbox, options: ReadOptions, suffixes: tuple[str, ...], open_part: Callable[[Path], Part]
) -> Iterator[Vectors]:
    """Yield the vectors of each type.

    Files without rows and dimension, as Spark writes one where its first partition is empty, are passed over. So are
    those without bytes of an export, such as the text of a partition whose entities have all expired.

    Args:
        inbox: holds the files.
        options: given by the user.
        suffixes: that the files' names end with.
        open_part: opens a local file; its errors may name that file.

    Raises:
        FormatError: files of one type differ in dimension.
    """
    for entity, found in inbox.typed(suffixes, options.entity).items():
        files = [file for file in found if inbox.manifest is None or inbox.sizes[file]] or found[:1]
        for number, head in enumerate(files, start=1):
            with inbox.local(head) as path:
                with named(path, inbox.source(head)):
                    first = open_part(path)
                others = files[number:]
                if others and _is_empty(first):
                    continue
                rest = _rest(inbox, others, open_part, first.dimension)
                blocks: Iterator[Block] = chain(named_items(first.blocks, path, inbox.source(head)), rest)
                source = inbox.url if others else inbox.source(head)
                yield Vectors(entity, first.dimension, source, blocks, None if others else first.total)
                break


def _is_empty(part: Part) -> bool:
    return not part.dimension and part.total == 0


def named_items(items: Iterator[Item], path: Path, source: str) -> Iterator[Item]:
    """Yield items, with errors that name ``source`` instead of its local copy."""
    with named(path, source):
        yield from items


def _rest(inbox: Inbox, files: list[str], open_part: Callable[[Path], Part], dimension: int) -> Iterator[Block]:
    for file in files:
        with inbox.local(file) as path, named(path, inbox.source(file)):
            part = open_part(path)
            if part.dimension != dimension and not _is_empty(part):
                raise FormatError(f"{path}: has dimension {part.dimension}, the files before it have {dimension}")
            yield from part.blocks
