"""Damaged, truncated and falsified matrix folders.

Each is refused by name, and none makes the reader allocate memory for a false size.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from pbg_tasks.errors import ConfigError, FormatError
from pbg_tasks.formats.angel import LocalFolder, MatrixLayout, RowType, open_matrix, write_matrix
from tests.formats.angel.samples import FORMATS, save, write_meta

ROWS = {0: {0: 0.5, 1: 1.5, 2: 2.5}, 1: {0: 3.5, 1: 4.5, 2: 5.5}}


def read(folder):
    """Read all of a matrix, both ways."""
    matrix = open_matrix(LocalFolder(folder))
    for _ in matrix.cells():
        pass
    for _ in matrix.vectors():
        pass


def edited(tmp_path, form, changes, kind=RowType.T_FLOAT_DENSE):
    """Write a sample with changed metadata.

    ``changes`` are by key, in the partition where it has the key.
    """

    def change(meta):
        part = meta["partMetas"]["0"]
        for key, value in changes.items():
            if key == "elementNum":
                part["rowMetas"]["1"][key] = value
            else:
                (part if key in part else meta)[key] = value

    return save(tmp_path / "m", form, kind, ROWS, columns=3, change=change)


@pytest.mark.parametrize("form", FORMATS)
def test_a_truncated_file(tmp_path, form):
    folder = save(tmp_path / "m", form, RowType.T_FLOAT_DENSE, ROWS)
    (folder / "0").write_bytes((folder / "0").read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"m/0: \d+ bytes, its metadata says \d+ at least: it is truncated"):
        read(folder)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("missing", [1, 4])
def test_a_length_that_cuts_a_record(tmp_path, form, missing):
    folder = save(tmp_path / "m", form, RowType.T_FLOAT_DENSE, ROWS)
    size = (folder / "0").stat().st_size
    meta = json.loads((folder / "_meta").read_bytes()[4:])
    meta["partMetas"]["0"]["length"] = size - missing
    write_meta(folder, meta)
    if "Text" in form and missing == 1:
        read(folder)  # the last line break only
    else:
        with pytest.raises(FormatError, match=r"m/0: partition 0"):
            read(folder)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("count", [0, 2, 4, (1 << 31) - 1])
def test_counts_that_are_not_those_of_the_data(tmp_path, form, count):
    key = "saveColNum" if "Column" in form else "elementNum"
    folder = edited(tmp_path, form, {key: count})
    with pytest.raises(FormatError, match="partition 0"):
        read(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rowType": 33}, "rowType is 33, which no version of Angel knows"),
        ({"rowType": -1}, "rowType is -1, which no version"),
        ({"rowType": 8}, "T_FLOAT_DENSE_COMPONENT.*no server can hold"),
        ({"rowType": 28}, "T_ANY_INTKEY_DENSE hold objects of a program"),
        ({"saveColElemNum": (1 << 31) - 1}, "columns of 2147483647 values, and 2 rows were saved"),
        ({"saveColElemNum": 0, "rowMetas": {}}, "3 columns of no rows"),
        ({"saveColNum": 0, "saveColElemNum": 0, "rowMetas": {}}, "36 bytes, and no records by its metadata"),
        ({"offset": 1 << 40}, r"bytes, its metadata says \d+ at least"),
        ({"length": (1 << 63) - 1}, r"bytes, its metadata says \d+ at least"),
        ({"fileName": "7"}, "m/7 is missing, the file of partition 0"),
        ({"startCol": 1, "rowType": 10}, "holds columns 0 to 2, outside 1 to 2"),
        ({"endCol": 2, "rowType": 10}, "holds columns 0 to 2, outside 0 to 1"),
    ],
)
def test_false_shape_of_format_by_column_is_refused(tmp_path, changes, message):
    folder = edited(tmp_path, "BinaryColumnFormat", changes)
    with pytest.raises(FormatError, match=message):
        read(folder)


@pytest.mark.parametrize("form", FORMATS)
def test_dense_rows_of_more_columns_than_there_are(tmp_path, form):
    with pytest.raises(FormatError, match=r"dense rows of \[3\] elements, and columns 0 to 4611686018427387903"):
        read(edited(tmp_path, form, {"endCol": 1 << 62}))


def test_rows_that_are_not_in_the_metadata(tmp_path):
    folder = save(tmp_path / "m", "RowIdColIdValueTextRowFormat", RowType.T_FLOAT_DENSE, ROWS)
    text = (folder / "0").read_text()
    (folder / "0").write_text(text.replace("1,0,3.5", "7,0,3.5"))
    with pytest.raises(FormatError, match="holds row 7, which its metadata does not have"):
        read(folder)
    (folder / "0").write_text(text.replace("1,0,3.5", "0,0,3.5"))
    with pytest.raises(FormatError, match="row 0 has 4 elements, metadata says 3"):
        read(folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,1.5,4.5,6", "line 2: 4 fields, expected 3"),
        ("1,1.5", "line 2: 2 fields, expected 3"),
        ("1,1.5,inf", "line 2: 'inf' is no number as Java writes it"),
        ("1,nan,1", "line 2: 'nan' is no number as Java writes it"),
        ("1,1_0,1", "line 2: '1_0' is no number"),
        ("1.0,1,1", "line 2: '1.0' is no whole number of 32 bits"),
        ("99999999999,1,1", "line 2: '99999999999' is no whole number of 32 bits"),
        ("0x1,1,1", "line 2: '0x1' is no whole number"),
        ("1,,1", "line 2: '' is no number"),
        ("1,\x1e,1", "an infinite value or NaN, which Angel wrote so that no program can read it"),
        ("1,é,1", "line 2: .* is no number"),
        ("", "line 2: 1 fields"),
    ],
)
def test_lines_that_are_no_records(tmp_path, line, message):
    folder = save(tmp_path / "m", "TextColumnFormat", RowType.T_FLOAT_DENSE, ROWS)
    data = f"0,0.5,3.5\n{line}\n2,2.5,5.5\n".encode("latin-1")
    (folder / "0").write_bytes(data)
    meta = json.loads((folder / "_meta").read_bytes()[4:])
    meta["partMetas"]["0"]["length"] = len(data)
    write_meta(folder, meta)
    with pytest.raises(FormatError, match=rf"m/0: partition 0.*{message}"):
        read(folder)


def two_partitions(folder):
    layout = MatrixLayout(name="m", rows=1, end_col=4, block_col=2)
    write_matrix(folder, layout, [(np.arange(4), np.arange(4, dtype=np.float32)[:, None])])
    return json.loads((folder / "m" / "_meta").read_bytes()[4:])


def test_gaps_in_partition_ids(tmp_path):
    meta = two_partitions(tmp_path)
    meta["partMetas"]["1"]["partId"] = 2
    write_meta(tmp_path / "m", meta)
    with pytest.raises(FormatError, match="partition 1 of 2 is missing; ids count from 0"):
        read(tmp_path / "m")


def test_partitions_that_share_bytes_or_columns(tmp_path):
    meta = two_partitions(tmp_path)
    part = meta["partMetas"]["1"]
    write_meta(tmp_path / "m", meta | {"partMetas": {"0": meta["partMetas"]["0"], "1": part | {"offset": 8}}})
    with pytest.raises(FormatError, match="partitions 0 and 1 share bytes"):
        read(tmp_path / "m")
    parts = {"0": meta["partMetas"]["0"], "1": part | {"startCol": 1}}
    write_meta(tmp_path / "m", meta | {"rowType": int(RowType.T_FLOAT_SPARSE), "partMetas": parts})
    with pytest.raises(FormatError, match=r"overlap .* and form no grid"):
        read(tmp_path / "m")


@pytest.mark.parametrize("form", ["TextColumnFormat", "ColIdValueTextRowFormat"])
@pytest.mark.parametrize("middle", [0, 4])
def test_repeated_or_unordered_columns_are_no_vectors(tmp_path, form, middle):
    folder = save(tmp_path / "m", form, RowType.T_FLOAT_SPARSE, {0: {0: 1.0, 1: 2.0, 3: 3.0}}, columns=5)
    (folder / "0").write_text((folder / "0").read_text().replace("\n1,", f"\n{middle},"))
    matrix = open_matrix(LocalFolder(folder))
    assert [cells.columns.tolist() for cells in matrix.cells()] == [[0, middle, 3]]
    with pytest.raises(FormatError, match="columns do not ascend as Angel writes them"):
        list(matrix.vectors())


def test_missing_metadata_or_foreign_format_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "none"):
        with pytest.raises(FormatError, match=f"{name}: no _meta or meta, so no matrix folder"):
            read(tmp_path / name)
    with pytest.raises(ConfigError, match=r"no Angel output format is named 'org\.example\.Mine' here"):
        read(edited(tmp_path, "BinaryColumnFormat", {"formatClassName": "org.example.Mine"}))


LIES = [
    {"saveColNum": (1 << 31) - 1},
    {"saveColElemNum": (1 << 31) - 1},
    {"length": 1 << 60},
    {"endCol": 1 << 62, "col": 1 << 62},
    {"endCol": 1 << 62, "rowType": 12},
]


def test_false_sizes_take_no_memory(tmp_path):
    folders = [edited(tmp_path / str(n), "BinaryColumnFormat", lie) for n, lie in enumerate(LIES)]
    folders += [edited(tmp_path / f"row{n}", "ColIdValueTextRowFormat", lie) for n, lie in enumerate(LIES)]
    program = f"""
import resource
from pbg_tasks.memory.machine import peak_bytes
from pbg_tasks.errors import PbgError
from pbg_tasks.formats.angel import LocalFolder, open_matrix
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # of addresses: whoever believes a number dies
before = peak_bytes()
for name in {[str(folder) for folder in folders]!r}:
    for entities in ("columns", "rows"):
        try:
            list(open_matrix(LocalFolder(Path(name))).vectors(entities))
        except PbgError:
            pass
print(peak_bytes() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 100_000 << 10
