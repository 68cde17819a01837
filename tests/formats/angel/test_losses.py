"""Losses of Angel: refused where certain, a warning where only suspected."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.angel import (
    AngelLossWarning,
    LocalFolder,
    MatrixLayout,
    RowType,
    Style,
    open_matrix,
    write_matrix,
)
from tests.formats.angel.samples import elements, save, write_meta

SPARSE = RowType.T_FLOAT_SPARSE


def accepted(folder):
    """Return the values that are left and the kinds of loss."""
    losses = []
    found = elements(open_matrix(LocalFolder(folder), on_loss=losses.append))
    return found, {(loss.kind, loss.certain) for loss in losses}


@pytest.mark.parametrize("form", ["ValueBinaryRowFormat", "ValueTextRowFormat"])
def test_sparse_rows_without_columns(tmp_path, form):
    folder = save(tmp_path / "m", form, SPARSE, {0: {2: 1.5, 4: 2.5}}, columns=6)
    with pytest.raises(FormatError, match=r"m: Angel wrote sparse rows without their column numbers, .*accept losses"):
        open_matrix(LocalFolder(folder))
    assert accepted(folder) == ({(0, 0): 1.5, (0, 1): 2.5}, {("dropped-keys", True)})  # as Angel loads them


def hashed(folder, form, parts):
    """Write a hashed matrix as by Angel 3.2.

    ``parts`` holds columns and their values by partition.
    """
    save(folder, form, SPARSE, {0: parts[0]})
    meta = json.loads((folder / "_meta").read_bytes()[4:])
    first, text = meta["partMetas"]["0"], b"".join(b"%d,%.1f\n" % item for item in parts[0].items())
    offset = len(text)
    for number, values in enumerate(parts[1:], start=1):
        more = b"".join(b"%d,%.1f\n" % item for item in values.items())
        part = json.loads(json.dumps(first)) | {"partId": number, "offset": offset, "length": len(more)}
        part["rowMetas"]["0"]["elementNum"] = len(values)
        part |= {"nnz": len(values), "saveColNum": len(values) if "Column" in form else 0}
        meta["partMetas"][str(number)] = part
        text, offset = text + more, offset + len(more)
    for part in meta["partMetas"].values():
        part |= {"startCol": 0, "endCol": 0}
    (folder / "0").write_bytes(text)
    write_meta(folder, meta | {"blockRow": -1, "blockCol": -1, "col": 4294967295})
    return folder


def test_hashed_columns(tmp_path):
    folder = hashed(tmp_path / "m", "TextColumnFormat", [{0: 1.0, 2: 2.0}, {2: 0.0, 4: 0.0}])
    with pytest.raises(FormatError, match="shifts the column numbers of hashed partitions but the first"):
        open_matrix(LocalFolder(folder))
    assert ("hashed-columns", True) in accepted(hashed(tmp_path / "n", "TextColumnFormat", [{0: 1.0}, {2: 0.0}]))[1]


def test_hashed_rows_and_one_hashed_partition_are_whole(tmp_path):
    rows = hashed(tmp_path / "rows", "ColIdValueTextRowFormat", [{0: 1.0, 2: 2.0}, {-3: 3.0, 7: 4.0}])
    assert elements(open_matrix(LocalFolder(rows))) == {(0, 0): 1, (0, 2): 2, (0, -3): 3, (0, 7): 4}
    one = hashed(tmp_path / "one", "TextColumnFormat", [{0: 1.0, 2: 2.0}])
    assert elements(open_matrix(LocalFolder(one))) == {(0, 0): 1, (0, 2): 2}


def test_hashed_columns_in_first_partition_only_are_whole(tmp_path):
    folder = hashed(tmp_path / "m", "TextColumnFormat", [{0: 1.0, 2: 2.0}, {}])
    assert accepted(folder) == ({(0, 0): 1, (0, 2): 2}, set())


@pytest.mark.parametrize("form", ["ValueBinaryRowFormat", "ValueTextRowFormat"])
def test_sparse_rows_with_every_column_need_no_keys(tmp_path, form):
    rows = {0: {0: 1.0, 1: 2.0}, 1: {}, 2: {0: 3.0, 1: 4.0}}
    folder = save(tmp_path / "m", form, SPARSE, rows, columns=2)
    assert accepted(folder) == ({(0, 0): 1, (0, 1): 2, (2, 0): 3, (2, 1): 4}, set())


def test_columns_that_only_later_rows_had(tmp_path):
    rows = {0: {0: 1.0, 2: 2.0}, 1: {0: 3.0, 1: 4.0, 2: 5.0}}
    folder = save(tmp_path / "m", "BinaryColumnFormat", SPARSE, rows)  # Angel writes the first row's columns only
    with pytest.raises(FormatError, match="saved the columns of each partition's first row only"):
        open_matrix(LocalFolder(folder))
    found, kinds = accepted(folder)
    assert found == {(0, 0): 1, (0, 2): 2, (1, 0): 3, (1, 2): 5}
    assert ("ragged-columns", True) in kinds


def test_equal_columns_with_fewer_values_warn_of_loss(tmp_path):
    folder = save(tmp_path / "m", "TextColumnFormat", SPARSE, {0: {0: 1.0, 2: 2.0}, 1: {1: 4.0, 2: 5.0}})
    matrix = open_matrix(LocalFolder(folder))
    with pytest.warns(
        AngelLossWarning, match=r"row 1 had 2 elements and only 1 of the saved columns hold one: perhaps"
    ):
        assert elements(matrix) == {(0, 0): 1, (0, 2): 2, (1, 0): 0, (1, 2): 5}


def test_rows_with_fewer_columns_than_first_are_whole(tmp_path):
    folder = save(tmp_path / "m", "TextColumnFormat", SPARSE, {0: {0: 1.0, 2: 2.0}, 1: {2: 5.0}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert elements(open_matrix(LocalFolder(folder))) == {(0, 0): 1, (0, 2): 2, (1, 0): 0, (1, 2): 5}


@pytest.mark.parametrize(
    ("values", "certain"),
    [
        ([0.5, 2.0], True),  # 2, where Java writes 2.0
        ([0.0001, 0.5], True),  # 0.0001, where Java writes 1.0E-4
        ([0.123456789, 0.5], False),  # 0.123457 could be one of Java's
    ],
)
def test_six_decimals(tmp_path, values, certain):
    layout = {"name": "m", "rows": 1, "end_col": 2, "row_type": RowType.T_DOUBLE_DENSE}
    blocks = [(np.arange(2), np.array(values)[:, None])]
    form = "RowIdColIdValueTextRowFormat"
    write_matrix(tmp_path, MatrixLayout(**layout, format=form, style=Style(six_decimals=True)), blocks)
    found, kinds = accepted(tmp_path / "m")
    assert found == {(0, column): round(value, 6) for column, value in enumerate(values)}
    assert kinds == {("six-decimals", certain)}
    if certain:
        with pytest.raises(FormatError, match="Angel rounded the doubles to six decimals"):
            open_matrix(LocalFolder(tmp_path / "m"))
    else:
        with pytest.warns(AngelLossWarning, match="perhaps Angel rounded"):
            open_matrix(LocalFolder(tmp_path / "m"))


@pytest.mark.parametrize("later", [2.0, 0.25])
def test_six_decimals_that_only_a_later_partition_proves(tmp_path, later):
    layout = MatrixLayout(
        name="m",
        rows=1,
        end_col=2,
        block_col=1,
        row_type=RowType.T_DOUBLE_DENSE,
        format="RowIdColIdValueTextRowFormat",
        style=Style(six_decimals=True),
    )
    write_matrix(tmp_path, layout, [(np.arange(2), np.array([[0.5], [later]]))])
    _, kinds = accepted(tmp_path / "m")
    assert kinds == {("six-decimals", False), *[("six-decimals", True)] * (later == 2)}
    with pytest.warns(AngelLossWarning, match="perhaps Angel rounded"):
        matrix = open_matrix(LocalFolder(tmp_path / "m"))
    if later == 2:
        with pytest.raises(FormatError, match="m: Angel rounded the doubles to six decimals"):
            elements(matrix)
    else:
        assert elements(matrix) == {(0, 0): 0.5, (0, 1): 0.25}


@pytest.mark.parametrize("value", [0.123456789, 1e-7, 5.0])
def test_doubles_in_full_are_not_suspected(tmp_path, value):
    layout = MatrixLayout(
        name="m", rows=1, end_col=1, row_type=RowType.T_DOUBLE_DENSE, format="RowIdColIdValueTextRowFormat"
    )
    write_matrix(tmp_path, layout, [(np.arange(1), np.array([[value]]))])
    assert accepted(tmp_path / "m") == ({(0, 0): value}, set())


def with_one_byte_values(folder):
    """Write doubles as Angel does since 2.3, among them infinities and NaN."""
    texts = {(0, 0): b"0.5", (0, 1): b"\x1e", (0, 2): b"-\x1e", (1, 0): b"\xfd", (1, 1): b"1.234568", (1, 2): b"7"}
    data = b"".join(b"%d,%d,%s\n" % (*place, text) for place, text in texts.items())
    rows = {row: dict.fromkeys(range(3), 0.0) for row in range(2)}
    save(folder, "RowIdColIdValueTextRowFormat", RowType.T_DOUBLE_DENSE, rows)
    (folder / "0").write_bytes(data)
    meta = json.loads((folder / "_meta").read_bytes()[4:])
    meta["partMetas"]["0"] |= {"length": len(data)}
    write_meta(folder, meta)
    return folder


def test_values_of_one_byte_leave_others_readable(tmp_path):
    folder = with_one_byte_values(tmp_path / "m")
    with pytest.raises(FormatError, match=r"m: Angel rounded the doubles to six decimals, .*accept losses"):
        elements(open_matrix(LocalFolder(folder)))
    found, kinds = accepted(folder)
    assert kinds == {("six-decimals", True), ("one-byte-values", True)}
    assert np.isnan(found.pop((1, 0)))
    assert found == {(0, 0): 0.5, (0, 1): np.inf, (0, 2): -np.inf, (1, 1): 1.234568, (1, 2): 7.0}
    ids, vectors = zip(*open_matrix(LocalFolder(folder), on_loss=[].append).vectors(), strict=True)
    assert np.concatenate(ids).tolist() == [0, 1, 2]
    np.testing.assert_array_equal(np.concatenate(vectors), [[0.5, np.nan], [np.inf, 1.234568], [-np.inf, 7.0]])


def test_values_of_one_byte_only_are_refused(tmp_path):
    """Digits that Java would have written keep six decimals from being suspected."""
    folder = with_one_byte_values(tmp_path / "m")
    data = (folder / "0").read_bytes().replace(b"1.234568", b"0.123456789").replace(b",0.5\n", b",1e5\n")
    (folder / "0").write_bytes(data)
    meta = json.loads((folder / "_meta").read_bytes()[4:])
    meta["partMetas"]["0"] |= {"length": len(data)}
    write_meta(folder, meta)
    with pytest.raises(FormatError, match=r"partition 0, line 2: an infinite value .*: '\\x1e'; .*accept losses"):
        elements(open_matrix(LocalFolder(folder)))
    assert accepted(folder)[1] == {("one-byte-values", True)}
