"""Conversion of edges in any form to one Arrow table of names."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pbg_tasks.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

Edges = Any
"""A numpy array (n, 2) of lhs, rhs or (n, 3) of lhs, rel, rhs; a tuple of two, three or four columns (the fourth are
weights); a list of such rows; a dict of columns; an Arrow table; a pandas or polars data frame."""

COLUMNS = ("lhs", "rel", "rhs", "weight", "lhs_type", "rhs_type")
_BY_POSITION = {2: ("lhs", "rhs"), 3: ("lhs", "rel", "rhs"), 4: ("lhs", "rel", "rhs", "weight")}


def edge_table(edges: Edges) -> pa.Table:
    """Return edges as a table with columns ``lhs``, ``rhs`` and others.

    Where given, the others are ``rel``, ``weight``, ``lhs_type`` and ``rhs_type``. Names and types become text (whole
    numbers their decimal form), weights float64.

    Raises:
        InputError: the form is none of those ``Edges`` lists, a column is missing or unknown, a name is null or neither
            text nor a whole number.
    """
    table = _as_table(edges)
    names = table.column_names
    unknown = [name for name in names if name not in COLUMNS]
    missing = [name for name in ("lhs", "rhs") if name not in names]
    if unknown or missing or len(set(names)) < len(names):
        raise InputError(
            f"edges have the columns {', '.join(map(repr, names))}; they need lhs and rhs, may have rel, weight, "
            "lhs_type and rhs_type, each once, and no others: rename or drop what differs"
        )
    if ("lhs_type" in names) != ("rhs_type" in names):
        raise InputError("edges need both lhs_type and rhs_type, or neither")
    columns = {name: _column(name, table[name]) for name in COLUMNS if name in names}
    return pa.table(columns)


def _as_table(edges: Edges) -> pa.Table:
    if isinstance(edges, np.ndarray):
        if edges.ndim != 2 or edges.shape[1] not in (2, 3):  # noqa: PLR2004 - the numbers of the message
            raise InputError(f"an array of edges has shape (n, 2) or (n, 3), not {edges.shape}")
        return _from_columns([edges[:, index] for index in range(edges.shape[1])])
    if isinstance(edges, tuple | list):
        return _from_columns(list(edges)) if isinstance(edges, tuple) else _from_rows(edges)
    return _built(edges) if isinstance(edges, dict) else _from_frame(edges)


def _from_frame(edges: Any) -> pa.Table:  # noqa: ANN401 - an Arrow table or a data frame of any library
    if type(edges).__module__.partition(".")[0] == "pandas":
        with _refusals():
            return pa.Table.from_pandas(edges, preserve_index=False)  # its stream would have the index as a column
    if hasattr(edges, "__arrow_c_stream__"):
        return pa.table(edges)
    if hasattr(edges, "to_arrow"):
        return edges.to_arrow()
    raise InputError(f"edges of type {type(edges).__name__} are not understood: give arrays, a table or a data frame")


def _from_columns(columns: list[Any]) -> pa.Table:
    names = _BY_POSITION.get(len(columns))
    if names is None:
        raise InputError(f"edges have 2 to 4 columns (lhs, rhs; lhs, rel, rhs; with weight), not {len(columns)}")
    return _built(dict(zip(names, columns, strict=True)))


def _from_rows(rows: list[Any]) -> pa.Table:
    if not rows:
        return _from_columns([[], []])
    widths = {len(row) if isinstance(row, tuple | list) else 0 for row in rows}
    if len(widths) != 1 or not widths <= set(_BY_POSITION):
        raise InputError(
            "a list of edges holds tuples (lhs, rhs), (lhs, rel, rhs) or (lhs, rel, rhs, weight), all alike"
        )
    return _from_columns([list(column) for column in zip(*rows, strict=True)])


def _built(columns: dict[str, Any]) -> pa.Table:
    with _refusals():
        return pa.table({name: _array(column) for name, column in columns.items()})


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn Arrow's errors of a caller's values into one of the edges.

    Raises:
        InputError: in place of those.
    """
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError, OverflowError) as error:
        raise InputError(f"edges cannot be made a table: {error}") from None


def _array(column: Any) -> Any:  # noqa: ANN401 - a column in, a column out
    """Return a column that Arrow accepts.

    Arrays of objects become lists, so that Arrow finds the type itself. It finds none for whole numbers of more than 64
    bits with a sign, which become text.
    """
    if isinstance(column, np.ndarray) and column.dtype.kind == "O":
        column = column.tolist()
    try:
        return pa.array(column) if isinstance(column, np.ndarray | list) else column
    except OverflowError:
        if not all(isinstance(value, int | np.integer) for value in column):
            raise
        return pa.array([str(int(value)) for value in column])


def _column(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        column = _decoded(column)
    if column.null_count:
        row = pc.index(pc.is_null(column), value=True).as_py()
        raise InputError(f"edges: column {name!r} has no value in row {row + 1}")
    if name == "weight":
        return _cast(name, column, pa.float64())
    if not len(column):
        return pa.chunked_array([], pa.large_string())  # without a value, a column has any type
    kind = column.type
    if not (pa.types.is_integer(kind) or _is_text(kind)):
        raise InputError(f"edges: column {name!r} is of type {kind}; names are text or whole numbers")
    return _cast(name, column, pa.large_string())


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a categorical column's values.

    Arrow itself cannot do so for all types of data frames.
    """
    values = column.type.value_type
    kind = pa.large_string() if _is_text(values) else values
    return pa.chunked_array([part.dictionary.cast(kind).take(part.indices) for part in column.chunks], kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _cast(name: str, column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"edges: column {name!r}: {error}") from None
