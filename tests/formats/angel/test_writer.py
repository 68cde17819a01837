"""Partitions and files cut as by Angel, refused contents, and atomic folders."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pbg_tasks.errors import ConfigError, ConflictError, FormatError, ResourceError
from pbg_tasks.formats.angel import (
    LocalFolder,
    MatrixLayout,
    RowType,
    Style,
    open_matrix,
    replacing_directory,
    write_cells,
    write_matrix,
)
from pbg_tasks.formats.angel.layout import files, hash_partition, tiles
from tests.formats.angel.samples import vectors


def one_row(values, start=0):
    return [(np.arange(start, start + len(values)), np.array(values, np.float32)[:, None])]


def test_partitions_count_along_the_columns_first():
    layout = MatrixLayout(name="m", rows=5, start_col=2, end_col=9, block_row=3, block_col=4)
    places = [(tile.part_id, tile.start_row, tile.end_row, tile.start_col, tile.end_col) for tile in tiles(layout)]
    assert places == [(0, 0, 3, 2, 6), (1, 0, 3, 6, 9), (2, 3, 5, 2, 6), (3, 3, 5, 6, 9)]


@pytest.mark.parametrize(
    ("rows", "columns", "servers", "block"),
    [(2, 6, 1, 100), (100, 1_000_000, 1, 5000), (1, 1_000_000, 4, 250_000), (1, 10**10, 1, 1_000_000)],
)
def test_columns_of_a_partition_are_angels_choice(rows, columns, servers, block):
    kind = RowType.T_FLOAT_SPARSE_LONGKEY
    layout = MatrixLayout(name="m", rows=rows, end_col=columns, servers=servers, row_type=kind)
    assert layout.columns_of_block == block


def test_files_hold_partitions_of_one_server_in_halves():
    assert files(5, 2, 5) == [[0, 2, 4], [1, 3]]
    assert files(11, 1, 5) == [[0, 1, 2, 3, 4], [5, 6, 7], [8, 9, 10]]
    assert files(1, 3, 5) == [[0]]


def test_hashes_as_angel_takes_them():
    columns = np.array([0, 3, -7, 10, 8589934592, 123456789012345, 65536])
    assert hash_partition(columns, 4).tolist() == [0, 3, 3, 2, 0, 1, 1]
    assert hash_partition(np.arange(9), 3).tolist() == [0, 1, 2] * 3


def test_the_files_of_several_servers(tmp_path):
    layout = MatrixLayout(name="m", rows=2, end_col=14, block_col=2, servers=2, partitions_per_file=2)
    values = np.arange(28, dtype=np.float32).reshape(14, 2)
    meta = write_matrix(tmp_path, layout, [(np.arange(14), values)])
    places = {part: (item.file_name, item.offset) for part, item in meta.part_metas.items()}
    assert places == {0: ("0", 0), 2: ("0", 24), 4: ("4", 0), 6: ("4", 24), 1: ("1", 0), 3: ("3", 0), 5: ("3", 24)}
    assert vectors(open_matrix(LocalFolder(tmp_path / "m"))) == dict(enumerate(values.tolist()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row_type": RowType.T_ANY_INTKEY_DENSE}, "no server stores numbers as T_ANY_INTKEY_DENSE"),
        ({"row_type": RowType.T_INT_DENSE_COMPONENT}, "no server stores numbers as"),
        ({"row_type": RowType.T_INT_SPARSE, "format": "ValueTextRowFormat"}, "drops the column numbers of sparse rows"),
        ({"end_col": 1 << 31}, "exceed 32 bits; sparse LONGKEY rows"),
        ({"start_col": 5}, "columns 5 to 4 are none"),
        ({"hash_partitions": 2}, "Angel hashes sparse rows only"),
        ({"hash_partitions": 2, "row_type": RowType.T_FLOAT_SPARSE}, "loses them in column formats"),
        ({"rows": 0}, "counted from 1"),
        ({"block_col": 0}, "counted from 1"),
        ({"name": "a/b"}, "it names a folder"),
        ({"name": "_x"}, "it names a folder"),
        ({"format": "Unknown"}, "no Angel output format is named 'Unknown'"),
    ],
)
def test_impossible_layout_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        MatrixLayout(**{"name": "m", "rows": 1, "end_col": 4} | changes)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (one_row([1, 2, 3]), "and 3 of 4 came"),
        (one_row([1, 2]) + one_row([3], start=3), "one up to 3 is missing"),
        (one_row([1, 2]) + one_row([3, 4], start=1), "do not ascend, or come twice"),
        (one_row([1, 2, 3, 4, 5]), "columns 0 to 4, outside 0 to 3"),
        ([(np.arange(4), np.zeros((4, 2), np.float32))], r"values of shape \(4, 2\) for 4 columns of 1 rows"),
        ([(np.arange(4), np.zeros((4, 1)))], "T_FLOAT_DENSE cannot hold every float64"),
    ],
)
def test_blocks_that_do_not_fit_leave_nothing(tmp_path, blocks, message):
    with pytest.raises(FormatError, match=f"matrix 'm': .*{message}"):
        write_matrix(tmp_path, MatrixLayout(name="m", rows=1, end_col=4), blocks)
    assert not list(tmp_path.iterdir())


def test_elements_that_do_not_fit(tmp_path):
    layout, one = MatrixLayout(name="m", rows=2, end_col=4), np.ones(2, np.float32)
    for rows, columns, message in (
        ([0, 0], [1, 1], "twice"),
        ([0, 2], [1, 1], "rows 0 to 2"),
        ([0, 0], [1, 4], "outside"),
    ):
        with pytest.raises(FormatError, match=message):
            write_cells(tmp_path, layout, np.array(rows), np.array(columns), one)


def test_partitions_too_large_to_be_turned(tmp_path):
    layout = MatrixLayout(name="m", rows=1000, end_col=10**6, block_col=10**6, format="ValueBinaryRowFormat")
    with pytest.raises(ConfigError, match="make block_col smaller"):
        write_matrix(tmp_path, layout, [])


@pytest.mark.parametrize("separator", ["", "1", ".", "-", "e", "\n", "é"])
def test_separators_that_could_be_part_of_a_number(tmp_path, separator):
    layout = MatrixLayout(name="m", rows=1, end_col=1, format="TextColumnFormat", style=Style(separator))
    with pytest.raises(ConfigError, match="separator"):
        write_matrix(tmp_path, layout, one_row([1.0]))


def test_folder_is_replaced_whole_and_on_request_only(tmp_path):
    layout = MatrixLayout(name="m", rows=1, end_col=2)
    write_matrix(tmp_path, layout, one_row([1, 2]))
    (tmp_path / "m" / ".0.crc").write_bytes(b"stale")
    with pytest.raises(ConflictError, match="m exists already"):
        write_matrix(tmp_path, layout, one_row([3, 4]))
    write_matrix(tmp_path, layout, one_row([3, 4]), replace=True)
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["0", "_meta"]
    assert vectors(open_matrix(LocalFolder(tmp_path / "m"))) == {0: [3], 1: [4]}
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_failure_leaves_the_old_folder(tmp_path):
    layout = MatrixLayout(name="m", rows=1, end_col=2)
    write_matrix(tmp_path, layout, one_row([1, 2]))
    with pytest.raises(FormatError):
        write_matrix(tmp_path, layout, one_row([1]), replace=True)
    assert vectors(open_matrix(LocalFolder(tmp_path / "m"))) == {0: [1], 1: [2]}
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_model_of_several_matrices_appears_at_once(tmp_path):
    with replacing_directory(tmp_path / "model") as model:
        for name in ("a", "b"):
            write_matrix(model, MatrixLayout(name=name, rows=1, end_col=1), one_row([1]))
        assert not (tmp_path / "model").exists()
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["a", "b"]
    assert json.loads((tmp_path / "model" / "b" / "_meta").read_bytes()[4:])["matrixName"] == "b"


def test_a_full_disk_leaves_nothing(small_disk):
    layout = MatrixLayout(name="m", rows=100, end_col=20_000)
    blocks = [(np.arange(start, start + 1000), np.zeros((1000, 100), np.float32)) for start in range(0, 20_000, 1000)]
    with pytest.raises(ResourceError, match="disk or its quota is full"):
        write_matrix(small_disk, layout, blocks)
    assert not list(small_disk.iterdir())
