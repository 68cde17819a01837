"""Edges in every form that a caller may have, as one table."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pbg_tasks.api.edges import edge_table
from pbg_tasks.errors import InputError

ROWS = [("a", "likes", "b"), ("b", "knows", "c")]
COLUMNS = {"lhs": ["a", "b"], "rel": ["likes", "knows"], "rhs": ["b", "c"]}


EMPTY = {
    "list": list,
    "list of columns": lambda: {"lhs": [], "rel": [], "rhs": []},
    "array": lambda: np.empty((0, 3), int),
    "array of objects": lambda: np.empty((0, 3), object),
    "array of floats": lambda: np.empty((0, 3)),
    "table": lambda: pa.table(COLUMNS).slice(0, 0),
    "table without types": lambda: pa.table({name: pa.nulls(0) for name in COLUMNS}),
}


@pytest.mark.parametrize("form", EMPTY)
def test_no_edges_are_an_empty_table(form):
    table = edge_table(EMPTY[form]())
    assert len(table) == 0
    assert {str(kind) for kind in table.schema.types} == {"large_string"}


class Frame:
    """Data frame of the Arrow C stream, as of pandas and polars."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


class OldFrame:
    """Data frame with a method of its own."""

    def to_arrow(self):
        return pa.table(COLUMNS)


FORMS = {
    "list": lambda: ROWS,
    "dict": lambda: COLUMNS,
    "array": lambda: np.array(ROWS),
    "array of objects": lambda: np.array(ROWS, object),
    "tuple": lambda: tuple(COLUMNS.values()),
    "tuple of arrays": lambda: tuple(np.array(column) for column in COLUMNS.values()),
    "table": lambda: pa.table(COLUMNS),
    "table of dictionaries": lambda: pa.table(
        {name: pa.array(column).dictionary_encode() for name, column in COLUMNS.items()}
    ),
    "table of dictionaries of views": lambda: pa.table(
        {
            name: pa.DictionaryArray.from_arrays([0, 1], pa.array(column, pa.string_view()))
            for name, column in COLUMNS.items()
        }
    ),
    "batch": lambda: pa.RecordBatch.from_pydict(COLUMNS),
    "frame": lambda: Frame(pa.table(COLUMNS)),
    "old frame": OldFrame,
}
"""Makers of each form, called by the test: an array made while tests are collected lets pyarrow import pandas."""


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_one_table(form):
    table = edge_table(FORMS[form]())
    assert table.to_pydict() == COLUMNS
    assert set(table.schema.types) == {pa.large_string()}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames_become_tables(library):
    module = pytest.importorskip(library, reason=f"{library} is not a dependency")
    frame = module.DataFrame(
        {"lhs": ["x", *COLUMNS["lhs"]], "rel": ["y", *COLUMNS["rel"]], "rhs": ["z", *COLUMNS["rhs"]]}
    )
    assert edge_table(frame[1:]).to_pydict() == COLUMNS


def test_whole_numbers_become_text_and_weights_numbers():
    assert edge_table(np.array([[1, 2], [30, 4]], np.uint32)).to_pydict() == {"lhs": ["1", "30"], "rhs": ["2", "4"]}
    table = edge_table((np.array([1, 2]), ["r", "r"], [np.int16(3), 4], np.array([0.5, 2], np.float16)))
    assert table.to_pydict() == {"lhs": ["1", "2"], "rel": ["r", "r"], "rhs": ["3", "4"], "weight": [0.5, 2.0]}


@pytest.mark.parametrize("make", [list, lambda ids: np.array(ids, object)])
def test_ids_beyond_64_bits_keep_their_digits(make):
    ids = [2**64 - 1, 2**63, 7, 2**70, -(2**63)]
    assert edge_table((make(ids), make(ids[::-1])))["lhs"].to_pylist() == [str(value) for value in ids]


@pytest.mark.parametrize("values", [["a", 1], [2**70, 1]])
def test_mixed_columns_of_pandas_are_refused(values):
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="edges cannot be made a table"):
        edge_table(pandas.DataFrame({"lhs": pandas.Series(values, dtype=object), "rhs": ["b", "c"]}))


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (([1, 2**63, "a"], [1, 2, 3]), "cannot be made a table"),
        (np.zeros((3, 4), int), r"shape \(n, 2\) or \(n, 3\), not \(3, 4\)"),
        (np.zeros((3, 2)), "column 'lhs' is of type double; names are text or whole numbers"),
        ({"lhs": [["x", "y"]], "rhs": [7]}, "column 'lhs' is of type list"),
        (np.zeros((3, 2), bool), "column 'lhs' is of type bool"),
        ([("a", "b"), ("a", "r", "b")], "all alike"),
        ((["a"],), "2 to 4 columns"),
        (([1, 2], [3]), "cannot be made a table"),
        ({"lhs": ["a"], "target": ["b"]}, "'lhs', 'target'; they need lhs and rhs"),
        ({"lhs": ["a"], "rhs": ["b"], "lhs_type": ["t"]}, "both lhs_type and rhs_type"),
        ({"lhs": ["a", None], "rhs": ["b", "c"]}, "column 'lhs' has no value in row 2"),
        ({"lhs": ["a"], "rhs": ["b"], "weight": ["heavy"]}, "column 'weight'"),
        ("edges.tsv", "edges of type str are not understood"),
        (7, "edges of type int are not understood"),
    ],
)
def test_other_objects_are_refused_with_a_reason(edges, message):
    with pytest.raises(InputError, match=message):
        edge_table(edges)
