"""Parquet files, one for each entity type.

The columns are ``id`` (string), ``embedding`` (list of D floats) and ``type``. Lists are stored in Parquet's own three
levels, so DuckDB, Spark and pandas read them; Arrow gets its fixed-size list back. The relations' parameters are a
table of their own, ``_relations/parameters.parquet``, which is left out by a glob or a folder reader of the embeddings.
With ``feast`` a column ``event_timestamp`` has the time of the model, by which Feast joins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pbg_tasks.errors import FormatError
from pbg_tasks.publish.exchange.contents import Block
from pbg_tasks.publish.exchange.parts import Part, read_parts
from pbg_tasks.publish.exchange.relations import FOLDER, relation_parameters, write_relations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pydantic import JsonValue

    from pbg_tasks.config.exports import ParquetOptions
    from pbg_tasks.publish.exchange.contents import Contents, EntityRows
    from pbg_tasks.publish.exchange.inbox import Inbox
    from pbg_tasks.publish.exchange.outbox import Outbox
    from pbg_tasks.publish.exchange.vectors import ReadOptions, Vectors

PARAMETERS = f"{FOLDER}/parameters.parquet"
TIME = "event_timestamp"
_ID_COLUMNS = ("id", "name")
_GROUP_VALUES = 1 << 24  # numbers of a row group: 64 MiB of float32
_READ_VALUES = 1 << 20
_BUFFER_BYTES = 1 << 20
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError, KeyError)
_PARAMETERS = pa.schema(
    [
        ("relation", pa.string()),
        ("lhs", pa.string()),
        ("rhs", pa.string()),
        ("operator", pa.string()),
        ("side", pa.string()),
        ("parameter", pa.string()),
        ("shape", pa.list_(pa.int32())),
        ("values", pa.list_(pa.float32())),
    ]
)


def write(contents: Contents, outbox: Outbox, options: ParquetOptions) -> dict[str, JsonValue]:
    """Write a table for each type, and one of the relations' parameters.

    Raises:
        FormatError: an embedding or a name is damaged, or the store does not know the time of the model.
    """
    for rows in contents.entities.values():
        outbox.record(rows, *write_rows(contents, rows, outbox, rows.entity, options))
    return write_shared(contents, outbox, options)


def write_rows(
    contents: Contents, rows: EntityRows, outbox: Outbox, stem: str, options: ParquetOptions
) -> tuple[str, ...]:
    """Write rows to the table ``{stem}.parquet``; return its name."""
    name = f"{stem}.parquet"
    _write_rows(rows, outbox.path(name), _time(contents) if options.feast else None)
    return (name,)


def write_shared(contents: Contents, outbox: Outbox, options: ParquetOptions) -> dict[str, JsonValue]:  # noqa: ARG001 - none here
    """Write the parameters and the index of the relations."""
    _write_parameters(contents, outbox.path(PARAMETERS))
    write_relations(contents, outbox)
    return {}


def _time(contents: Contents) -> pa.Scalar:
    if contents.stored is None:
        raise FormatError("the store does not know when the model was stored, which Feast needs; export without feast")
    return pa.scalar(contents.stored, pa.timestamp("us", "UTC"))


def _write_rows(rows: EntityRows, path: Path, time: pa.Scalar | None) -> None:
    vectors = pa.list_(pa.float32(), rows.dimension)
    fields = [("id", pa.string()), ("embedding", vectors), ("type", pa.dictionary(pa.int8(), pa.string()))]
    schema = pa.schema(fields if time is None else [*fields, (TIME, time.type)])
    group: list[pa.RecordBatch] = []
    with _table(path, schema) as table:
        for block in rows.blocks():
            count = len(block.names)
            columns = [
                pa.array(block.names, pa.string()),
                pa.FixedSizeListArray.from_arrays(pa.array(block.vectors.ravel()), rows.dimension),
                pa.DictionaryArray.from_arrays(np.zeros(count, np.int8), [rows.entity]),
            ]
            if time is not None:
                columns.append(pa.repeat(time, count))
            group.append(pa.RecordBatch.from_arrays(columns, schema=schema))
            if sum(map(len, group)) * rows.dimension >= _GROUP_VALUES:
                table.write_table(pa.Table.from_batches(group))
                group.clear()
        table.write_table(pa.Table.from_batches(group, schema))


def _write_parameters(contents: Contents, path: Path) -> None:
    group: list[dict[str, JsonValue]] = []
    values = 0
    with _table(path, _PARAMETERS) as table:
        for item in relation_parameters(contents):
            group.append(item._asdict() | {"shape": item.values.shape, "values": item.values.ravel()})
            values += item.values.size
            if values >= _GROUP_VALUES:
                table.write_table(pa.Table.from_pylist(group, _PARAMETERS))
                group, values = [], 0
        table.write_table(pa.Table.from_pylist(group, _PARAMETERS))


def _table(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Open a table for writing.

    Floats are neither compressed nor put into a dictionary, because they gain nothing from it.
    """
    texts = [field.name for field in schema if not pa.types.is_nested(field.type)]
    compression = {f"{field.name}.list.element": "none" for field in schema if pa.types.is_nested(field.type)}
    return pq.ParquetWriter(
        path,
        schema,
        compression={**dict.fromkeys(texts, "zstd"), **compression},
        use_dictionary=[name for name in texts if name != "id"],
        write_statistics=texts,
    )


def read(inbox: Inbox, options: ReadOptions) -> Iterator[Vectors]:
    """Yield the vectors of each type's files.

    Raises:
        FormatError: a file is damaged, lacks a column, or holds vectors of several lengths.
    """

    def open_part(path: Path) -> Part:
        try:
            file = pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
            columns = _columns(file.schema_arrow, options, path)
            dimension = _dimension(file, columns[1])
        except _DAMAGE as error:
            raise FormatError(f"{path}: not a readable Parquet file ({error})") from None
        if file.metadata.num_rows and not dimension:
            raise FormatError(f"{path}: row 0 has no numbers")
        return Part(dimension, file.metadata.num_rows, _blocks(file, path, columns, dimension))

    return read_parts(inbox, options, (".parquet",), open_part)


def _columns(schema: pa.Schema, options: ReadOptions, path: Path) -> tuple[str, str]:
    """Return the columns of names and vectors."""
    kinds = {field.name: field.type for field in schema}
    wanted = (options.id_column,) if options.id_column else _ID_COLUMNS
    name = next((column for column in wanted if column in kinds), None)
    vector = kinds.get(options.vector_column, pa.null())
    if name is None or not (pa.types.is_integer(kinds[name]) or _is_text(kinds[name])) or not _is_vector(vector):
        raise FormatError(
            f"{path}: needs a column {' or '.join(map(repr, wanted))} of strings or whole numbers and a column "
            f"{options.vector_column!r} of lists of floats, has "
            + ", ".join(f"{column} ({kind})" for column, kind in kinds.items())
        )
    return name, options.vector_column


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_vector(kind: pa.DataType) -> bool:
    is_list = any(test(kind) for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))
    return is_list and bool(pa.types.is_floating(kind.value_type))


def _dimension(file: pq.ParquetFile, column: str) -> int:
    """Return the length of all vectors, or of the first."""
    kind = file.schema_arrow.field(column).type
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size)
    for batch in file.iter_batches(batch_size=1, columns=[column]):
        return len(batch.column(0)[0].as_py() or [])
    return 0


def _blocks(file: pq.ParquetFile, path: Path, columns: tuple[str, str], dimension: int) -> Iterator[Block]:
    start, step = 0, max(1, _READ_VALUES // max(1, dimension))
    try:
        for group in range(file.num_row_groups):  # one by one, because Arrow would keep all of them in memory
            for batch in file.iter_batches(step, row_groups=[group], columns=list(columns)):
                names, vectors = batch.column(columns[0]), batch.column(columns[1])
                if names.null_count:
                    raise FormatError(f"{path}: row {start + names.is_null().index(True).as_py()} has no name")
                yield Block(_texts(names), _matrix(vectors, dimension, path, start))
                start += len(batch)
    except _DAMAGE as error:
        raise FormatError(f"{path}: not a readable Parquet file ({error})") from None


def _texts(names: pa.Array) -> list[str]:
    if pa.types.is_integer(names.type):
        return [str(number) for number in names.to_pylist()]
    texts: list[str] = names.cast(pa.large_string()).to_pylist()
    return texts


def _matrix(vectors: pa.Array, dimension: int, path: Path, start: int) -> np.ndarray:
    """Return lists of floats as float32 (N, ``dimension``)."""
    lengths = pc.list_value_length(vectors).fill_null(0).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(lengths != dimension)
    if len(wrong):
        row = int(wrong[0])
        raise FormatError(f"{path}: row {start + row} has {lengths[row]} numbers, the first row has {dimension}")
    values: np.ndarray = vectors.flatten().to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):  # a double beyond float32 becomes infinite, which is refused later
        return values.astype(np.float32).reshape(-1, dimension)
