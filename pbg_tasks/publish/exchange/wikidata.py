"""Published Wikidata embeddings of PBG, as text.

The file is ``wikidata_translation_v1.tsv.gz`` (for the arrays: ``wikidata_arrays``). The first line counts entities,
relations and dimension; then comes a line for each entity, then the parameters of the relations in lines of the same
form, for which an ``init_path`` has no place. Names hold quotes, blanks, ``#`` and URLs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pbg_tasks.errors import FormatError
from pbg_tasks.progress import say
from pbg_tasks.publish.exchange.contents import Block
from pbg_tasks.publish.exchange.delimited import first_lines, read_lines
from pbg_tasks.publish.exchange.parts import Part, read_parts, text_endings
from pbg_tasks.publish.exchange.wikidata_arrays import ARRAYS, read_arrays

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pbg_tasks.publish.exchange.inbox import Inbox
    from pbg_tasks.publish.exchange.vectors import ReadOptions, Vectors

_HEADER = re.compile(r"([0-9]{1,12})\t([0-9]{1,12})\t([0-9]{1,6})\s*")


def read(inbox: Inbox, options: ReadOptions) -> Iterator[Vectors]:
    """Yield the vectors of the entities, from text or array.

    Raises:
        FormatError: a line is wrong, there are fewer than the first line promises, or the array is damaged.
    """
    if any(name.endswith(ARRAYS) for name in inbox.names):
        return read_arrays(inbox, options)
    return read_parts(inbox, options, text_endings(".tsv"), _open)


def _open(path: Path) -> Part:
    lines = first_lines(path, 1)
    header = _HEADER.fullmatch(lines[0]) if lines else None
    if header is None:
        raise FormatError(f"{path}: its first line is not ENTITIES, RELATIONS and DIMENSION with tabs between")
    entities, relations, dimension = map(int, header.groups())
    if not dimension:
        raise FormatError(f"{path}: its first line says dimension 0")
    return Part(dimension, entities, _entities(path, entities, relations, dimension))


def _entities(path: Path, entities: int, relations: int, dimension: int) -> Iterator[Block]:
    """Yield the first ``entities`` rows, and read on to the end.

    Only the end shows whether a file was truncated.
    """
    found = 0
    for block in read_lines(path, delimiter="\t", dimension=dimension, skip=1):
        wanted = max(0, entities - found)
        found += len(block.names)
        if wanted:
            yield Block(block.names[:wanted], block.vectors[:wanted])
    if found < entities + relations:
        raise FormatError(
            f"{path}: holds {found} rows, its first line says {entities} entities and {relations} relations; it may be "
            "truncated"
        )
    say(f"{path.name}: {found - entities} rows of relations are left out: an init_path holds entities only")
