"""All formats and row types, compared with folders written by hand.

Folders written by hand are read, and the writer's folders have the same bytes.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbg_tasks.formats.angel import LocalFolder, MatrixLayout, RowType, Style, open_matrix, write_cells, write_matrix
from tests.formats.angel.samples import FORMATS, NUMERIC, elements, save, vectors

DENSE = [kind for kind in NUMERIC if kind.dense]
POSSIBLE = [(form, kind) for form in FORMATS for kind in NUMERIC if "Id" in form or "Column" in form or kind.dense]


def whole_rows(kind):
    """Return three rows with some of six columns, for a row type."""
    columns = range(6) if kind.dense else (0, 2, 5)
    return {row: {column: kind.value_type.type(7 * row - column) for column in columns} for row in range(3)}


@pytest.mark.parametrize(("form", "kind"), POSSIBLE)
def test_every_format_and_row_type_is_read(tmp_path, form, kind):
    rows = whole_rows(kind)
    matrix = open_matrix(LocalFolder(save(tmp_path / "m", form, kind, rows, columns=6)))
    assert matrix.row_type == kind
    found = elements(matrix)
    assert found == {(row, column): value for row, values in rows.items() for column, value in values.items()}
    assert {type(value) for value in found.values()} == {kind.value_type.type}
    assert vectors(matrix) == {column: [rows[row][column] for row in rows] for column in rows[0]}
    assert vectors(matrix, "rows") == {
        row: [values.get(column, 0) for column in range(6)] for row, values in rows.items()
    }


@pytest.mark.parametrize(("form", "kind"), POSSIBLE)
def test_every_format_and_row_type_is_written_equally(tmp_path, form, kind):
    rows = whole_rows(kind)
    by_hand = save(tmp_path / "hand" / "m", form, kind, rows, columns=6)
    layout = MatrixLayout(name="m", rows=3, end_col=6, row_type=kind, format=form, block_col=6)
    places = [(row, column, value) for row, values in rows.items() for column, value in values.items()]
    write_cells(tmp_path / "cells", layout, *map(np.array, zip(*places, strict=True)))
    blocks = [(np.array([column]), np.array([[rows[row][column] for row in rows]])) for column in rows[0]]
    write_matrix(tmp_path / "vectors", layout, blocks)
    for ours in ("cells", "vectors"):
        assert contents(tmp_path / ours / "m") == contents(by_hand)


@pytest.mark.parametrize("form", FORMATS)
def test_the_bytes_of_the_specification(tmp_path, form):
    rows = np.array([[0.5, -1.25]], np.float32)
    layout = MatrixLayout(name="m", rows=1, end_col=12, start_col=10, format=form)
    write_matrix(tmp_path, layout, [(np.array([10, 11]), rows.T)])
    half, other, ten, eleven, zero = "3f000000", "bfa00000", "0000000a", "0000000b", "00000000"
    assert (tmp_path / "m" / "0").read_bytes() == {
        "ValueBinaryRowFormat": bytes.fromhex(half + other),
        "ColIdValueBinaryRowFormat": bytes.fromhex(ten + half + eleven + other),
        "RowIdColIdValueBinaryRowFormat": bytes.fromhex(zero + ten + half + zero + eleven + other),
        "ValueTextRowFormat": b"0.5\n-1.25\n",
        "ColIdValueTextRowFormat": b"10,0.5\n11,-1.25\n",
        "RowIdColIdValueTextRowFormat": b"0,10,0.5\n0,11,-1.25\n",
        "BinaryColumnFormat": bytes.fromhex(ten + half + eleven + other),
        "TextColumnFormat": b"10,0.5\n11,-1.25\n",
    }[form]


def test_metadata_as_angel_writes_it(tmp_path):
    layout = MatrixLayout(name="m", rows=2, end_col=3, format="RowIdColIdValueTextRowFormat", options={"a/b": "x"})
    write_matrix(tmp_path, layout, [(np.arange(3), np.zeros((3, 2), np.float32))])
    text = (
        r'{"matrixId":0,"matrixName":"m","formatClassName":'
        r'"com.tencent.angel.model.output.format.RowIdColIdValueTextRowFormat","rowType":7,"row":2,"col":3,"blockRow":2,'
        r'"blockCol":100,"options":{"feature.index.range.end":"3","a\/b":"x","feature.index.range.start":"0"},'
        r'"partMetas":{"0":{"partId":0,"startRow":0,"endRow":2,"startCol":0,"endCol":3,"nnz":6,"saveRowNum":2,'
        r'"saveColNum":0,"saveColElemNum":0,"fileName":"0","offset":0,"length":48,'
        r'"rowMetas":{"0":{"rowId":0,"offset":0,"elementNum":3,"saveType":0},'
        r'"1":{"rowId":1,"offset":0,"elementNum":3,"saveType":0}}}}}'
    )
    assert (tmp_path / "m" / "_meta").read_bytes() == len(text).to_bytes(4, "big") + text.encode()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_vectors_of_any_cut_come_back(tmp_path_factory, data):
    form, kind = data.draw(st.sampled_from(POSSIBLE))
    start, count = data.draw(st.integers(-5, 5)), data.draw(st.integers(0, 40))
    rows = data.draw(st.integers(1, 6))
    columns = np.arange(start, start + count)
    if not kind.dense:
        columns = columns[np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), bool)]
    bits = data.draw(st.binary(min_size=len(columns) * rows * 8, max_size=len(columns) * rows * 8))
    values = np.frombuffer(bits, kind.value_type)[: len(columns) * rows].reshape(-1, rows)
    layout = MatrixLayout(
        name="m",
        rows=rows,
        start_col=start,
        end_col=start + count,
        row_type=kind,
        format=form,
        block_row=data.draw(st.none() | st.integers(1, 6)),
        block_col=data.draw(st.integers(1, 50)),
        servers=data.draw(st.integers(1, 3)),
        partitions_per_file=data.draw(st.integers(1, 4)),
        style=Style(data.draw(st.sampled_from([",", "\t", " ", "||", "|", ";"]))),
    )
    cuts = sorted({0, len(columns), *data.draw(st.lists(st.integers(0, len(columns)), max_size=3))})
    folder = tmp_path_factory.mktemp("m")
    blocks = [(columns[a:b], values[a:b]) for a, b in zip(cuts, [*cuts[1:], cuts[-1]], strict=True)]
    write_matrix(folder, layout, blocks)
    matrix = open_matrix(LocalFolder(folder / "m"), separator=layout.style.separator, on_loss=lambda _: None)
    found = vectors(matrix)
    assert sorted(found) == columns.tolist()
    for column, vector in zip(columns.tolist(), values, strict=True):
        np.testing.assert_array_equal(np.array(found[column], kind.value_type), vector)  # one NaN is as another
    if count and len(columns):
        turned = vectors(matrix, "rows")
        whole = np.zeros((rows, count), kind.value_type)
        whole[:, columns - start] = values.T
        np.testing.assert_array_equal(np.array([turned[row] for row in range(rows)], kind.value_type), whole)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_ragged_rows_come_back(tmp_path_factory, data):
    form, kind = data.draw(st.sampled_from([(form, kind) for form, kind in POSSIBLE if not kind.dense]))
    long = kind.key_type.itemsize == 8
    key = st.integers(-(1 << 60), 1 << 60) if long else st.integers(-1000, 1000)
    value = st.integers(-(1 << 30), 1 << 30).map(kind.value_type.type)
    cells = data.draw(st.dictionaries(st.tuples(st.integers(0, 3), key), value, max_size=30))
    hashed = data.draw(st.none() | st.integers(1, 5)) if "Column" not in form else None
    end = (1 << 60) + 1 if long else 1001
    layout = MatrixLayout(
        name="m",
        rows=4,
        start_col=1 - end,
        end_col=end,
        block_col=end // 2,
        row_type=kind,
        format=form,
        hash_partitions=hashed,
        servers=2,
    )
    places = np.array(list(cells), np.int64).reshape(-1, 2)
    folder = tmp_path_factory.mktemp("m")
    write_cells(folder, layout, places[:, 0], places[:, 1], np.array(list(cells.values()), kind.value_type))
    matrix = open_matrix(
        LocalFolder(folder / "m"), on_loss=lambda loss: None if not loss.certain else pytest.fail(str(loss))
    )
    found = elements(matrix)
    assert {place: value for place, value in found.items() if value} == {p: v for p, v in cells.items() if v}
    columns = sorted({column for _, column in cells})
    assert vectors(matrix) == {column: [cells.get((row, column), 0) for row in range(4)] for column in columns}


@pytest.mark.parametrize("form", ["BinaryColumnFormat", "ColIdValueTextRowFormat"])
def test_columns_farther_apart_than_a_number_holds(tmp_path, form):
    limit = 1 << 63
    columns = np.array([-limit, -1, limit - 2])
    layout = MatrixLayout(
        name="m",
        rows=2,
        start_col=-limit,
        end_col=limit - 1,
        block_col=limit - 1,
        row_type=RowType.T_INT_SPARSE_LONGKEY,
        format=form,
    )
    write_matrix(tmp_path, layout, [(columns, np.array([[1, 2], [3, 4], [5, 6]]).astype(np.int32))])
    matrix = open_matrix(LocalFolder(tmp_path / "m"))
    assert vectors(matrix) == {-limit: [1, 2], -1: [3, 4], limit - 2: [5, 6]}


@pytest.mark.parametrize("name", ["_meta", "meta"])
def test_both_names_of_the_metadata(tmp_path, name):
    save(tmp_path / "m", "BinaryColumnFormat", RowType.T_FLOAT_DENSE, {0: {0: 1.0}}, name=name)
    assert elements(open_matrix(LocalFolder(tmp_path / "m"))) == {(0, 0): 1}
    layout = MatrixLayout(name="n", rows=1, end_col=1, meta_name=name)
    write_matrix(tmp_path, layout, [(np.zeros(1, int), np.zeros((1, 1), np.float32))])
    assert sorted(path.name for path in (tmp_path / "n").iterdir()) == sorted(["0", name])


def test_rows_in_any_metadata_order_are_read_ascending(tmp_path):
    def turn(meta):
        part = meta["partMetas"]["0"]
        part["rowMetas"] = dict(reversed(part["rowMetas"].items()))

    rows = {row: {0: row + 0.5, 1: row + 0.25} for row in (10, 11, 12)}
    for form in ("ValueBinaryRowFormat", "ColIdValueTextRowFormat", "TextColumnFormat"):
        save(tmp_path / form, form, RowType.T_DOUBLE_DENSE, rows, columns=2, change=turn)
        found = elements(open_matrix(LocalFolder(tmp_path / form)))
        assert found == {(row, column): value for row, values in rows.items() for column, value in values.items()}


def test_a_row_without_elements_is_zero(tmp_path):
    rows = {0: {1: 2.0, 4: 3.0}, 1: {}, 2: {4: 1.0}}
    for form in ("ColIdValueBinaryRowFormat", "RowIdColIdValueTextRowFormat"):
        matrix = open_matrix(LocalFolder(save(tmp_path / form, form, RowType.T_FLOAT_SPARSE, rows, columns=5)))
        assert vectors(matrix) == {1: [2, 0, 0], 4: [3, 0, 1]}
        assert vectors(matrix, "rows") == {0: [0, 2, 0, 0, 3], 1: [0] * 5, 2: [0, 0, 0, 0, 1]}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (b"0,+1.5\n1, -2 \n2,1.5f\n3,0x1.8p1\n4,1e-05\n", [1.5, -2, 1.5, 3, 1e-5]),
        (b"0,NaN\r\n1,Infinity\r\n2,-Infinity\r\n3,1e50\r\n4,.5\r\n", [np.nan, np.inf, -np.inf, np.inf, 0.5]),
        (b"0,1.00000005960464477540\n1,1\n2,1.\n3,-0.0\n4,1E10", [1.0000001, 1, 1, -0.0, 1e10]),
    ],
)
def test_text_is_read_as_java_reads_it(tmp_path, text, values):
    def lengthen(meta):
        meta["partMetas"]["0"]["length"] = len(text)

    rows = {0: dict.fromkeys(range(5), 0.0)}
    save(tmp_path / "m", "ColIdValueTextRowFormat", RowType.T_FLOAT_DENSE, rows, change=lengthen)
    (tmp_path / "m" / "0").write_bytes(text)
    found = elements(open_matrix(LocalFolder(tmp_path / "m")))
    np.testing.assert_array_equal([found[0, column] for column in range(5)], np.array(values, np.float32))
    assert np.signbit(found[0, 3]) == np.signbit(values[3])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}
