"""Metadata of a matrix folder as typed objects, with Angel's names.

It describes the matrix, its partitions, and their rows. The file is a big-endian int32, the length, and that many bytes
of JSON. A file that Angel wrote has equal bytes after it is read and written again. ``_meta`` is the name since Angel
3.2, ``meta`` the one before.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from pbg_tasks.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

META_NAMES = ("_meta", "meta")
MAX_META_BYTES = 1 << 28  # a million rows in one partition take a quarter of it

_LENGTH = struct.Struct(">i")
_LIMITS = {"int": 1 << 31, "long": 1 << 63}
_FILE_NAME = re.compile(r"[^/\\\0._][^/\\\0]*")  # a file in this folder that is not hidden
_SCALARS = (int, str, float, bool)


@dataclass(frozen=True, slots=True)
class RowPartitionMeta:
    """Share of one row in a partition.

    Attributes:
        row_id: number of the row.
        element_num: number of its elements.
        offset: without a meaning, but written by Angel (the partition's own in row formats, -1 in column formats).
        save_type: 0 or 1, dense or sparse, in snapshots; else 0.
    """

    row_id: int = field(metadata={"json": "rowId", "type": "int"})
    offset: int = field(metadata={"json": "offset", "type": "long"})
    element_num: int = field(metadata={"json": "elementNum", "type": "int"})
    save_type: int = field(default=0, metadata={"json": "saveType", "type": "int"})


@dataclass(frozen=True, slots=True)
class MatrixPartitionMeta:
    """Block of rows and columns, and the place of its bytes.

    Ranges are half open.

    Attributes:
        nnz: sum of the rows' elements; a dense row counts its zeros.
        save_row_num: rows saved, in row formats; else 0.
        save_col_num: columns saved, in column formats; else 0.
        save_col_elem_num: values of a column, in column formats; else 0.
        file_name: in the matrix folder; several partitions may share one.
        offset: of its first byte in the file.
        length: bytes.
        row_metas: by row id, in the order of the file; the data is in ascending order of ids whatever this order is.
    """

    part_id: int = field(metadata={"json": "partId", "type": "int"})
    start_row: int = field(metadata={"json": "startRow", "type": "int"})
    end_row: int = field(metadata={"json": "endRow", "type": "int"})
    start_col: int = field(metadata={"json": "startCol", "type": "long"})
    end_col: int = field(metadata={"json": "endCol", "type": "long"})
    nnz: int = field(metadata={"json": "nnz", "type": "long"})
    save_row_num: int = field(metadata={"json": "saveRowNum", "type": "int"})
    save_col_num: int = field(metadata={"json": "saveColNum", "type": "int"})
    save_col_elem_num: int = field(metadata={"json": "saveColElemNum", "type": "int"})
    file_name: str = field(metadata={"json": "fileName", "type": "str"})
    offset: int = field(metadata={"json": "offset", "type": "long"})
    length: int = field(metadata={"json": "length", "type": "long"})
    row_metas: Mapping[int, RowPartitionMeta]

    @property
    def row_ids(self) -> list[int]:
        """Rows in the order of their data."""
        return sorted(self.row_metas)


@dataclass(frozen=True, slots=True)
class MatrixFilesMeta:
    """Metadata of a matrix.

    Attributes:
        format_class_name: Java class that wrote the data.
        row_type: number of a ``RowType``.
        row: number of rows it can have; fewer may be saved.
        col: number of columns it can have, 4294967295 for any int: too many to allocate.
        block_row: rows of a partition; -1 where keys are hashed.
        block_col: columns of a partition; -1 where keys are hashed.
        options: the matrix's attributes.
        part_metas: by partition id.
    """

    matrix_id: int = field(metadata={"json": "matrixId", "type": "int"})
    matrix_name: str = field(metadata={"json": "matrixName", "type": "str"})
    format_class_name: str = field(metadata={"json": "formatClassName", "type": "str"})
    row_type: int = field(metadata={"json": "rowType", "type": "int"})
    row: int = field(metadata={"json": "row", "type": "int"})
    col: int = field(metadata={"json": "col", "type": "long"})
    block_row: int = field(metadata={"json": "blockRow", "type": "int"})
    block_col: int = field(metadata={"json": "blockCol", "type": "long"})
    options: Mapping[str, str]
    part_metas: Mapping[int, MatrixPartitionMeta]

    @property
    def hashed(self) -> bool:
        """Whether columns are assigned to partitions by a hash, not by ranges."""
        return self.block_row < 0 and self.block_col < 0


def parse_meta(data: bytes, where: str) -> MatrixFilesMeta:
    """Parse a metadata file.

    A file without the length at its start is accepted too, although no version of Angel writes it.

    Raises:
        FormatError: wrong length, no JSON, or a key that is missing, of another type, or beyond its range.
    """
    text = data if data.startswith(b"{") else _unframed(data, where)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: not the JSON of Angel's matrix metadata: {error}") from None
    values = _values(MatrixFilesMeta, found, where)
    options = _entry(found, "options", where)
    values["options"] = {key: _option(value, f"{where}: options.{key}") for key, value in options.items()}
    parts = _entry(found, "partMetas", where)
    values["part_metas"] = _by_id(
        (_partition(value, f"{where}: partMetas.{key}") for key, value in parts.items()), "part_id", where
    )
    return MatrixFilesMeta(**values)


def serialize_meta(meta: MatrixFilesMeta) -> bytes:
    """Return the bytes of the metadata file as Angel writes them."""
    parts = {}
    for part_id, part in meta.part_metas.items():
        rows = {str(row_id): _by_json(row) for row_id, row in part.row_metas.items()}
        parts[str(part_id)] = {**_by_json(part), "rowMetas": rows}
    whole = {**_by_json(meta), "options": dict(meta.options), "partMetas": parts}
    text = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).replace("/", "\\/").encode()
    return _LENGTH.pack(len(text)) + text


def _unframed(data: bytes, where: str) -> bytes:
    if len(data) < _LENGTH.size:
        raise FormatError(f"{where}: {len(data)} bytes, too short for Angel's matrix metadata")
    (length,) = _LENGTH.unpack_from(data)
    if length != len(data) - _LENGTH.size:
        raise FormatError(
            f"{where}: says {length} bytes of JSON and holds {len(data) - _LENGTH.size}: truncated, damaged or not "
            "Angel's matrix metadata"
        )
    return data[_LENGTH.size :]


def _partition(found: object, where: str) -> MatrixPartitionMeta:
    values = _values(MatrixPartitionMeta, found, where)
    if not _FILE_NAME.fullmatch(values["file_name"]):
        raise FormatError(f"{where}: fileName {values['file_name']!r:.60} is no data file of the matrix's folder")
    if min(values["offset"], values["length"], values["save_col_num"], values["save_col_elem_num"]) < 0:
        raise FormatError(f"{where}: an offset, length or number of columns is negative")
    if values["end_row"] < values["start_row"] or values["end_col"] < values["start_col"]:
        raise FormatError(f"{where}: its rows or columns end before they start")
    rows = _entry(found, "rowMetas", where)
    values["row_metas"] = _by_id(
        (RowPartitionMeta(**_values(RowPartitionMeta, row, f"{where}.rowMetas.{key}")) for key, row in rows.items()),
        "row_id",
        where,
    )
    for row_id, row in values["row_metas"].items():
        if row.element_num < 0 or not values["start_row"] <= row_id < values["end_row"]:
            raise FormatError(
                f"{where}: row {row_id} has {row.element_num} elements or is none of the partition's rows"
            )
    return MatrixPartitionMeta(**values)


def _values(kind: type, found: object, where: str) -> dict[str, Any]:
    """Return the plain fields of a metadata object, each checked."""
    if not isinstance(found, dict):
        raise FormatError(f"{where}: expected an object, found {found!r:.40}")
    values = {}
    for item in fields(kind):
        if not item.metadata:
            continue
        key, wanted = item.metadata["json"], item.metadata["type"]
        if key not in found:
            raise FormatError(f"{where}: the key {key!r} is missing, without which Angel reads no metadata")
        value = found[key]
        if wanted == "str":
            good = isinstance(value, str)
        else:
            good = type(value) is int and -_LIMITS[wanted] <= value < _LIMITS[wanted]
        if not good:
            raise FormatError(f"{where}: {key!r} is {value!r:.40}, expected {'text' if wanted == 'str' else wanted}")
        values[item.name] = value
    return values


def _entry(found: object, key: str, where: str) -> dict[str, Any]:
    value = found.get(key) if isinstance(found, dict) else None
    if not isinstance(value, dict):
        raise FormatError(f"{where}: the key {key!r} is missing or no object, without which Angel reads no metadata")
    return value


def _option(value: object, where: str) -> str:
    if not isinstance(value, _SCALARS):
        raise FormatError(f"{where}: expected text, found {value!r:.40}")
    return value if isinstance(value, str) else json.dumps(value)


def _by_id(items: Iterable[Any], name: str, where: str) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for item in items:
        number = getattr(item, name)
        if number in found:
            raise FormatError(f"{where}: {name} {number} occurs twice")
        found[number] = item
    return found


def _by_json(item: RowPartitionMeta | MatrixPartitionMeta | MatrixFilesMeta) -> dict[str, Any]:
    return {part.metadata["json"]: getattr(item, part.name) for part in fields(item) if part.metadata}
