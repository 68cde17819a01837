"""PBG's own text: embeddings and parameters of relations.

The files are ``entity_embeddings.tsv`` (name, numbers) and ``relation_types_parameters.tsv``. The numbers have nine
decimals, as PBG writes them, so numbers that are read back are near and not equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from pbg_tasks.errors import FormatError
from pbg_tasks.publish.decimals import write_lines
from pbg_tasks.publish.exchange.delimited import first_lines, read_lines
from pbg_tasks.publish.exchange.names import TABS_AND_BREAKS, writable
from pbg_tasks.publish.exchange.parts import Part, read_parts, text_endings
from pbg_tasks.publish.tsv import write_relations_tsv

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pydantic import JsonValue

    from pbg_tasks.config.exports import TextOptions
    from pbg_tasks.publish.exchange.contents import Contents, EntityRows
    from pbg_tasks.publish.exchange.inbox import Inbox
    from pbg_tasks.publish.exchange.outbox import Outbox
    from pbg_tasks.publish.exchange.vectors import ReadOptions, Vectors

ENTITIES = "entity_embeddings.tsv"
RELATIONS = "relation_types_parameters.tsv"


def write(contents: Contents, outbox: Outbox, options: TextOptions) -> dict[str, JsonValue]:
    """Write one text of embeddings, and one of parameters.

    The embeddings are those of all types, the parameters those of the relations.

    Raises:
        FormatError: a name holds a tab or a line break, or an embedding is damaged.
    """
    with outbox.path(ENTITIES).open("wb") as out:
        for rows in contents.entities.values():
            _write(rows, out, options)
            outbox.record(rows, ENTITIES)
    return write_shared(contents, outbox, options)


def write_rows(
    contents: Contents,  # noqa: ARG001 - for formats that need it
    rows: EntityRows,
    outbox: Outbox,
    stem: str,
    options: TextOptions,
) -> tuple[str, ...]:
    """Write rows to the text ``{stem}.tsv``; return its name."""
    name = f"{stem}.tsv"
    with outbox.path(name).open("wb") as out:
        _write(rows, out, options)
    return (name,)


def _write(rows: EntityRows, out: BinaryIO, options: TextOptions) -> None:
    for block in rows.blocks():
        names = writable(block.names, TABS_AND_BREAKS, escape=options.escape, form="tsv")
        write_lines(out, names, block.vectors)


def write_shared(contents: Contents, outbox: Outbox, options: TextOptions) -> dict[str, JsonValue]:
    """Write the text of the relations' parameters."""
    relations = writable(contents.relations, TABS_AND_BREAKS, escape=options.escape, form="tsv")
    with outbox.path(RELATIONS).open("wb") as out:
        lines = write_relations_tsv(out, contents.config, relations, contents.params)
    return {"relation_parameters": lines}


def read(inbox: Inbox, options: ReadOptions) -> Iterator[Vectors]:
    """Yield the vectors of each text.

    Raises:
        FormatError: a line is wrong.
    """
    return read_parts(inbox, options, text_endings(".tsv"), _open)


def _open(path: Path) -> Part:
    lines = first_lines(path, 1)
    dimension = lines[0].count("\t") if lines else 0
    if not dimension:
        raise FormatError(f"{path}: line 1: no name and numbers with tabs between")
    return Part(dimension, None, read_lines(path, delimiter="\t", dimension=dimension))
