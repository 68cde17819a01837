"""Angel model: a matrix ``{type}_embedding`` for each entity type.

It has D rows, and a column is an entity. Angel has no place for names: ``mapping/{type}`` has a line ``column:name``
for each. Each parameter of the relations is a small matrix of its own, such as ``relations.0.rhs.translation``.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.angel import (
    MatrixLayout,
    open_matrix,
    parse_meta,
    serialize_meta,
    write_cells,
    write_lines,
    write_mapping,
    write_matrix,
    write_range,
)
from pbg_tasks.progress import say
from pbg_tasks.publish.exchange.angel_folders import MAPPING, InboxFolder, by_type, named_blocks, of_type
from pbg_tasks.publish.exchange.names import BREAKS, writable
from pbg_tasks.publish.exchange.relations import parameter_key, write_relations
from pbg_tasks.publish.exchange.vectors import Vectors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import JsonValue

    from pbg_tasks.config.exports import AngelOptions, TextOptions
    from pbg_tasks.formats.angel import Loss, MatrixFilesMeta
    from pbg_tasks.publish.exchange.contents import Around, Contents, EntityRows
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
        layout = _layout(rows, f"{options.layout}Format", len(rows))
        write_matrix(outbox.root, layout, columns(rows))
        write_names(rows, outbox, f"{MAPPING}/{rows.entity}", options, form="angel")
        outbox.record(rows, *outbox.adopt(layout.name), *outbox.adopt(f"{MAPPING}/{rows.entity}"))
    _write_shared(contents, outbox)
    return {}


def write_part(contents: Contents, outbox: Outbox, options: AngelOptions, *, first: bool) -> dict[str, JsonValue]:
    """Write the files that begin in the partitions of a part.

    They are those of the whole matrix, to the byte. The last one may end in the partitions that follow, of which only
    those are brought. Its metadata is a piece. The mapping has a file a partition.

    Raises:
        FormatError: an embedding is damaged, or a name holds a line break.
    """
    for rows in contents.entities.values():
        files = list[str]()
        if rows.partitions:
            files += _write_own(rows, outbox, options)
        folder = outbox.path(f"{MAPPING}/{rows.entity}/_SUCCESS") if first else None
        if folder is not None:
            folder.touch()
        outbox.record(rows, *files)
    if first:
        _write_shared(contents, outbox)
    return {}


def _write_own(rows: EntityRows, outbox: Outbox, options: AngelOptions) -> list[str]:
    if rows.around is None:
        raise RuntimeError("the rows of a part do not know the other partitions: a bug")
    around = rows.around()
    start = sum(around.counts[: rows.partitions[0]])
    layout = _layout(rows, f"{options.layout}Format", sum(around.counts))
    names = write_range(outbox.root / layout.name, layout, _following(rows, around, start), start, start + len(rows))
    *files, meta = (f"{layout.name}/{name}" for name in names)
    outbox.files |= {file: outbox.root / file for file in files}
    outbox.pieces[meta] = outbox.root / meta
    for number, part in rows.apart():
        name = f"{MAPPING}/{rows.entity}/part-{number:05d}"
        start += write_lines(outbox.path(name), enumerate(_names(part, options, "angel"), start))
        files.append(name)
    return files


def _following(rows: EntityRows, around: Around, start: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the columns of a part and of the partitions after it."""
    yield from columns(rows, start)
    start += len(rows)
    for number in range(rows.partitions[-1] + 1, len(around.counts)):
        yield from columns(around.bring(number), start)
        start += around.counts[number]


def join(pieces: Sequence[bytes], source: str) -> bytes:
    """Return the metadata of a matrix of which parts have written files."""
    first, *others = (parse_meta(piece, source) for piece in pieces)
    metas = dict(first.part_metas)
    for each in others:
        metas |= each.part_metas
    return serialize_meta(replace(first, part_metas=dict(sorted(metas.items()))))


def _write_shared(contents: Contents, outbox: Outbox) -> None:
    for path, value in contents.params.items():
        _write_parameter(parameter_key(path), value, outbox)
    write_relations(contents, outbox)


def _layout(rows: EntityRows, form: str, count: int) -> MatrixLayout:
    """Return the matrix layout of a type.

    Its partitions are as Angel would cut them, or larger, because each lists all its rows in the metadata.
    """
    layout = MatrixLayout(name=f"{rows.entity}{SUFFIX}", rows=rows.dimension, end_col=count, format=form)
    most = max(1, _LISTED_ROWS // rows.dimension)
    return replace(layout, block_col=max(layout.columns_of_block, -(-count // most)))


def columns(rows: EntityRows, start: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the numbers of rows, from ``start``, with their vectors."""
    for block in rows.blocks():
        yield np.arange(start, start + len(block.names)), block.vectors
        start += len(block.names)


def write_names(rows: EntityRows, outbox: Outbox, folder: str, options: TextOptions, *, form: str) -> None:
    """Write the mapping of a type; ``form`` is the format, for messages.

    Raises:
        FormatError: a name holds a line break.
    """
    write_mapping(outbox.root / folder, enumerate(_names(rows, options, form)))


def _names(rows: EntityRows, options: TextOptions, form: str) -> Iterator[str]:
    return (name for part in rows.names() for name in writable(part, BREAKS, escape=options.escape, form=form))


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
        FormatError: a matrix is damaged or lacks its metadata, or Angel itself lost data while it saved it.
    """
    metas = (name.rpartition("/") for name in inbox.names)
    matrices = [folder for folder, _, file in metas if file in _METAS]
    folders = {name.rpartition("/")[0] for name in inbox.names}
    if lost := sorted(each for each in folders.difference(matrices) if each.endswith(SUFFIX)):
        raise FormatError(
            f"{inbox.source(lost[0])}: has no metadata; save the model again, or import the folders of its other "
            "matrices one by one (models of LINE and word2vec have none: import them as angel-line)"
        )
    embeddings = [folder for folder in matrices if folder.endswith(SUFFIX) and not _is_global(folder)] or matrices
    found = by_type(((folder.rpartition("/")[2].removesuffix(SUFFIX), folder) for folder in embeddings), inbox)
    for entity, folder in of_type(inbox, options.entity, found).items():
        with InboxFolder(inbox, folder) as files:
            matrix = open_matrix(files, on_loss=_report)
            mappings = (f"{MAPPING}/{entity}", MAPPING)
            blocks = named_blocks(inbox, matrix.vectors(), mappings)
            yield Vectors(entity, dimension(matrix.meta), files.where, blocks)


def _is_global(folder: str) -> bool:
    """Return whether a matrix is a type's global embedding, a parameter."""
    return fnmatchcase(folder.rpartition("/")[2], f"entities.*.global{SUFFIX}")


def dimension(meta: MatrixFilesMeta) -> int:
    """Return the number of saved rows of a matrix.

    It is the dimension of the matrix's columns, whatever the field ``row`` of the metadata contains. Without any saved
    row, it is that field.
    """
    return len({row for part in meta.part_metas.values() for row in part.row_metas}) or meta.row


def _report(loss: Loss) -> None:
    """Refuse a loss that is certain, and report a possible one.

    Raises:
        FormatError: the loss is certain.
    """
    if loss.certain:
        raise FormatError(loss.message)
    say(loss.message)
