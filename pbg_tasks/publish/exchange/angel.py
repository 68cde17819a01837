"""Angel model: a matrix ``{type}_embedding`` for each entity type.

It has D rows, and a column is an entity. Angel has no place for names: ``mapping/{type}`` has a line ``column:name``
for each. Each parameter of the relations is a small matrix of its own, such as ``relations.0.rhs.translation``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.angel import MatrixLayout, open_matrix, write_cells, write_mapping, write_matrix
from pbg_tasks.progress import say
from pbg_tasks.publish.exchange.angel_folders import MAPPING, InboxFolder, by_type, named_blocks, of_type
from pbg_tasks.publish.exchange.names import BREAKS, writable
from pbg_tasks.publish.exchange.relations import parameter_key, write_relations
from pbg_tasks.publish.exchange.vectors import Vectors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import JsonValue

    from pbg_tasks.config.exports import AngelOptions, TextOptions
    from pbg_tasks.formats.angel import Loss, MatrixFilesMeta
    from pbg_tasks.publish.exchange.contents import Contents, EntityRows
    from pbg_tasks.publish.exchange.inbox import Inbox
    from pbg_tasks.publish.exchange.outbox import Outbox
    from pbg_tasks.publish.exchange.vectors import ReadOptions

SUFFIX = "_embedding"
_METAS = ("_meta", "meta")
_MOST_ROWS = 100_000  # most rows of a matrix: each is an entry of its metadata
_LISTED_ROWS = 200_000  # most rows over all partitions of a matrix: 13 MB of metadata


def write(contents: Contents, outbox: Outbox, options: AngelOptions) -> dict[str, JsonValue]:
    """Write the matrix and mapping of each type, and relations' parameters.

    Raises:
        FormatError: an embedding is damaged, or a name holds a line break.
    """
    for rows in contents.entities.values():
        layout = _layout(rows, f"{options.layout}Format")
        write_matrix(outbox.root, layout, columns(rows))
        write_names(rows, outbox, f"{MAPPING}/{rows.entity}", options)
        outbox.record(rows, *outbox.adopt(layout.name), *outbox.adopt(f"{MAPPING}/{rows.entity}"))
    for path, value in contents.params.items():
        _write_parameter(parameter_key(path), value, outbox)
    write_relations(contents, outbox)
    return {}


def _layout(rows: EntityRows, form: str) -> MatrixLayout:
    """Return the matrix layout of a type.

    Its partitions are as Angel would cut them, or larger, because each lists all its rows in the metadata.
    """
    layout = MatrixLayout(name=f"{rows.entity}{SUFFIX}", rows=rows.dimension, end_col=len(rows), format=form)
    most = max(1, _LISTED_ROWS // rows.dimension)
    return replace(layout, block_col=max(layout.columns_of_block, -(-len(rows) // most)))


def columns(rows: EntityRows) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the numbers of rows, from 0, with their vectors."""
    start = 0
    for block in rows.blocks():
        yield np.arange(start, start + len(block.names)), block.vectors
        start += len(block.names)


def write_names(rows: EntityRows, outbox: Outbox, folder: str, options: TextOptions) -> None:
    """Write the mapping of a type.

    Raises:
        FormatError: a name holds a line break.
    """
    names = (name for part in rows.names() for name in writable(part, BREAKS, escape=options.escape, form="angel"))
    write_mapping(outbox.root / folder, enumerate(names))


def _write_parameter(name: str, value: np.ndarray, outbox: Outbox) -> None:
    """Write a parameter as a matrix, whose columns are its last axis."""
    matrix = value.reshape(-1, value.shape[-1])
    if not matrix.size or len(matrix) > _MOST_ROWS:
        say(f"export angel: parameter {name} of shape {value.shape} is left out: Angel's metadata lists every row")
        return
    layout = MatrixLayout(
        name=name,
        rows=len(matrix),
        end_col=matrix.shape[1],
        format="RowIdColIdValueTextRowFormat",
        block_col=matrix.shape[1],
    )
    rows, columns = np.indices(matrix.shape)
    write_cells(outbox.root, layout, rows.ravel(), columns.ravel(), matrix.ravel())
    outbox.adopt(name)


def read(inbox: Inbox, options: ReadOptions) -> Iterator[Vectors]:
    """Yield the columns of each matrix of embeddings.

    The inbox is a model, or one matrix folder.

    Raises:
        FormatError: a matrix is damaged, or Angel itself lost data while it saved it.
    """
    metas = (name.rpartition("/") for name in inbox.names)
    matrices = [folder for folder, _, file in metas if file in _METAS]
    embeddings = [folder for folder in matrices if folder.endswith(SUFFIX)] or matrices
    found = by_type(((folder.rpartition("/")[2].removesuffix(SUFFIX), folder) for folder in embeddings), inbox)
    for entity, folder in of_type(inbox, options.entity, found).items():
        with InboxFolder(inbox, folder) as files:
            matrix = open_matrix(files, on_loss=_tell)
            mappings = (f"{MAPPING}/{entity}", MAPPING)
            blocks = named_blocks(inbox, matrix.vectors(), mappings)
            yield Vectors(entity, dimension(matrix.meta), files.where, blocks)


def dimension(meta: MatrixFilesMeta) -> int:
    """Return the number of saved rows of a matrix.

    It is the dimension of the matrix's columns, whatever the field ``row`` of the metadata contains. Without any saved
    row, it is that field.
    """
    return len({row for part in meta.part_metas.values() for row in part.row_metas}) or meta.row


def _tell(loss: Loss) -> None:
    """Refuse a loss that is certain, and report a possible one.

    Raises:
        FormatError: the loss is certain.
    """
    if loss.certain:
        raise FormatError(loss.message)
    say(loss.message)
