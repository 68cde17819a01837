"""Matrix folders written number by number from the specification.

Reader and writer are compared with them.
"""

from __future__ import annotations

import json
import struct
from itertools import pairwise

import numpy as np

from pbg_tasks.formats.angel import RowType
from pbg_tasks.formats.angel.java_digits import java_text

PACKAGE = "com.tencent.angel.model.output.format."
NUMERIC = [RowType(7 * value + kind) for value in range(4) for kind in (0, 3, 5)]
ROW_FORMATS = [
    f"{keys}{text}RowFormat" for keys in ("Value", "ColIdValue", "RowIdColIdValue") for text in ("Binary", "Text")
]
FORMATS = [*ROW_FORMATS, "BinaryColumnFormat", "TextColumnFormat"]
LETTERS = {"float64": "d", "float32": "f", "int64": "q", "int32": "i"}


def number(value, kind):
    """Return a value as text."""
    if kind.kind == "i":
        return str(int(value))
    return java_text(float(value), single=kind == np.float32)


def partition(form, row_type, rows, separator=","):
    """Return a partition's bytes; ``rows``: values by row and column."""
    text, kind = "Text" in form, row_type.value_type
    key, letter = LETTERS[row_type.key_type.name], LETTERS[kind.name]
    data = b""
    if "Column" in form:
        for column in sorted(rows[min(rows)]):
            values = [rows[row].get(column, 0) for row in sorted(rows)]
            if text:
                data += separator.join([str(column), *(number(value, kind) for value in values)]).encode() + b"\n"
            else:
                data += struct.pack(f">{key}{len(values)}{letter}", column, *values)
        return data
    for row in sorted(rows):
        for column, value in sorted(rows[row].items()):
            fields = [("i", row)] * form.startswith("RowId") + [(key, column)] * ("ColId" in form) + [(letter, value)]
            if text:
                texts = [*(str(item) for _, item in fields[:-1]), number(value, kind)]
                data += separator.join(texts).encode() + b"\n"
            else:
                data += struct.pack(">" + "".join(code for code, _ in fields), *(item for _, item in fields))
    return data


def save(folder, form, row_type, rows, *, columns=None, name="_meta", separator=",", change=None):
    """Write a matrix of one partition.

    ``columns`` is the number of columns, for dense rows; ``change`` edits the metadata.
    """
    end = columns if columns is not None else max((max(row, default=-1) for row in rows.values()), default=-1) + 1
    return save_blocks(folder, form, row_type, rows, (0, end), name=name, separator=separator, change=change)


def save_blocks(folder, form, row_type, rows, bounds, *, per_file=1, name="_meta", separator=",", change=None):
    """Write a matrix whose partitions are cut at ``bounds``.

    ``per_file`` partitions share a file.
    """
    folder.mkdir(parents=True)
    start, end = bounds[0], bounds[-1]
    meta = {
        "matrixId": 0,
        "matrixName": "m",
        "formatClassName": PACKAGE + form,
        "rowType": int(row_type),
        "row": len(rows),
        "col": end - start,
        "blockRow": len(rows),
        "blockCol": bounds[1] - start,
        "options": {"feature.index.range.end": str(end), "feature.index.range.start": str(start)},
        "partMetas": {},
    }
    for part, (first, last) in enumerate(pairwise(bounds)):
        inside = {row: {c: v for c, v in values.items() if first <= c < last} for row, values in rows.items()}
        file = folder / str(part - part % per_file)
        offset = file.stat().st_size if file.exists() else 0
        data = partition(form, row_type, inside, separator)
        with file.open("ab") as out:
            out.write(data)
        meta["partMetas"][str(part)] = part_meta(form, inside, part, (first, last), (file.name, offset, len(data)))
    if change is not None:
        change(meta)
    write_meta(folder, meta, name)
    return folder


def part_meta(form, rows, part, columns, place):
    """Return the metadata of a partition; ``place``: file name, offset and length."""
    by_column = "Column" in form
    return {
        "partId": part,
        "startRow": min(rows),
        "endRow": max(rows) + 1,
        "startCol": columns[0],
        "endCol": columns[1],
        "nnz": sum(map(len, rows.values())),
        "saveRowNum": 0 if by_column else len(rows),
        "saveColNum": len(rows[min(rows)]) if by_column else 0,
        "saveColElemNum": len(rows) if by_column else 0,
        "fileName": place[0],
        "offset": place[1],
        "length": place[2],
        "rowMetas": {
            str(row): {
                "rowId": row,
                "offset": -1 if by_column else place[1],
                "elementNum": len(rows[row]),
                "saveType": 0,
            }
            for row in sorted(rows)
        },
    }


def write_meta(folder, meta, name="_meta"):
    """Write metadata as Angel does."""
    text = json.dumps(meta, separators=(",", ":")).replace("/", "\\/").encode()
    (folder / name).write_bytes(struct.pack(">i", len(text)) + text)


def elements(matrix):
    """Return a matrix's values by row and column."""
    found = {}
    for cells in matrix.cells():
        for row, column, value in zip(cells.rows.tolist(), cells.columns.tolist(), cells.values, strict=True):
            assert (row, column) not in found
            found[row, column] = value
    return found


def vectors(matrix, entities="columns"):
    """Return a matrix's vectors by entity."""
    found = {}
    for ids, block in matrix.vectors(entities):
        assert ids.dtype == np.int64
        for entity, vector in zip(ids.tolist(), block, strict=True):
            assert entity not in found
            found[entity] = vector.tolist()
    return found
