"""Folders such as ``rel=likes`` in the path of Parquet files."""

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pbg_tasks.prepare.sources.base import Layout
from pbg_tasks.prepare.sources.parquet import ParquetSource
from pbg_tasks.prepare.sql import table
from tests.prepare.inputs import check, make_spec, refusal

OPEN = {
    "entities": {"node": {"num_partitions": 1}},
    "relations": [{"name": "edge", "lhs": "node", "rhs": "node"}],
    "dynamic_relations": True,
    "dimension": 4,
}
LHS = Layout(("lhs",), ("VARCHAR",))


@pytest.mark.parametrize("scan", [table, lambda path: ParquetSource().scan(None, [str(path)], LHS)])
def test_folder_named_like_column_leaves_rows(tmp_path, scan):
    path = tmp_path / "lhs=7" / "p.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"lhs": ["a"]}), path)
    assert duckdb.sql(f"SELECT lhs FROM {scan(path)}").fetchall() == [("a",)]


@pytest.mark.parametrize("rows", [1, 20_000])  # large files are staged as they are, if they hold all columns
def test_folders_are_columns_that_files_lack(tmp_path, rows):
    for folder, end in (("rel=likes", "x"), ("rel=has%2Fa%3Db", "y")):
        (tmp_path / "day" / "hour=7" / folder).mkdir(parents=True)
        edges = pa.table({"lhs": ["a"] * rows, "rhs": [end] * rows})
        pq.write_table(edges, tmp_path / "day" / "hour=7" / folder / "p.parquet")
    location = {"location": f"{tmp_path}/{{snapshot}}/*/*/*.parquet"}
    report = check(make_spec(tmp_path, form="parquet", model=OPEN, snapshots=location), tmp_path)
    assert report.relations == {"likes": rows, "has/a=b": rows}
    assert report.columns == {"lhs": ["VARCHAR"], "rhs": ["VARCHAR"], "rel": ["FOLDER"]}
    staged = f"SELECT DISTINCT * FROM '{tmp_path}/scratch/edges*.parquet' ORDER BY ALL"
    assert duckdb.sql(staged).fetchall() == [("a", "has/a=b", "y"), ("a", "likes", "x")]


def test_folder_without_value_is_no_name(tmp_path):
    folder = tmp_path / "day" / "rel=__HIVE_DEFAULT_PARTITION__"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"lhs": ["a", "b"], "rhs": ["x", "y"]}), folder / "p.parquet")
    location = {"location": f"{tmp_path}/{{snapshot}}/*/*.parquet"}
    found = refusal(make_spec(tmp_path, form="parquet", model=OPEN, snapshots=location), tmp_path)
    assert found.endswith("p.parquet, row 1: empty relation in column rel (2 such rows in the snapshot)")
