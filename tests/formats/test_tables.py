"""Files of a table, by their names."""

from __future__ import annotations

import pytest

from pbg_tasks.formats import tables
from pbg_tasks.formats.tables import bits_of_files, file_names, files_in_order, present_files

NAMES = ["1-of-3.t.parquet", "2-of-3.t.parquet", "3-of-3.t.parquet"]


def test_table_of_one_file_keeps_its_name():
    assert file_names("t.parquet", 1) == ["t.parquet"]
    assert file_names("t.parquet", 3) == NAMES


@pytest.mark.parametrize("number", range(3))
def test_each_file_shows_all_of_table(number):
    assert present_files("t.parquet", ["other.parquet", NAMES[number]]) == NAMES


def test_file_of_similar_name_is_of_other_table():
    """A type may be named like the number of a file."""
    others = ["t.1-of-3.parquet", "1-of-3.at.parquet", "x1-of-3.t.parquet", "1-of-3_t.parquet", "1-of-3.txparquet"]
    assert present_files("t.parquet", others) == []
    assert present_files("t.parquet", [*others, "t.parquet"]) == ["t.parquet"]


@pytest.mark.parametrize(
    ("rows", "files", "bits"),
    [(0, 1, 0), (1, 1, 0), (7, 1, 0), (8, 2, 1), (14, 2, 1), (15, 3, 2), (28, 4, 2), (29, 5, 3)],
)
def test_files_are_as_few_as_rows_allow(monkeypatch, rows, files, bits):
    monkeypatch.setattr(tables, "ROWS_OF_A_FILE", 7)
    assert files_in_order(rows) == files
    assert bits_of_files(rows) == bits
