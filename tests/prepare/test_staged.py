"""Staged rows of a snapshot, used in place of its files."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pbg_tasks.config import Resources, SnapshotFile
from pbg_tasks.prepare import STAGED, connect, open_staged, validate_snapshot
from pbg_tasks.prepare.snapshot import open_snapshot
from pbg_tasks.storage.columnar import list_files
from tests.prepare.inputs import make_spec, put


def staged(root, spec, name, *, threads):
    files = [SnapshotFile(uri=u, size=s, version=v) for u, s, v in list_files(spec.snapshots.resolve("day"))]
    out = root / name
    out.mkdir()
    with connect(Resources(threads=threads), out) as connection:
        report = validate_snapshot(connection, spec, files, before=None, out=out)
        for file in files:
            (root / "day" / file.uri.rpartition("/")[2]).rename(root / f"{name}-{file.uri.rpartition('/')[2]}")
        open_snapshot(connection, spec, open_staged(files, out / STAGED))
        rows = connection.execute("SELECT * FROM raw").fetchall()
    for file in files:
        (root / f"{name}-{file.uri.rpartition('/')[2]}").rename(root / "day" / file.uri.rpartition("/")[2])
    return report, rows, (out / STAGED).read_bytes()


def test_staged_rows_stand_for_the_files(tmp_path):
    spec = make_spec(tmp_path)
    put(tmp_path, 'lhs,rel,rhs\na,likes,b\n"a,""x",likes,b\n', "1.csv")
    put(tmp_path, "rhs,rel,lhs\nc,knows,a\n", "2.csv")
    report, rows, _ = staged(tmp_path, spec, "out", threads=1)
    assert rows == [
        ("a", "likes", "b", None, None, None),
        ('a,"x', "likes", "b", None, None, None),
        ("a", "knows", "c", None, None, None),
    ]
    assert report.edges == 3
    assert report.columns == {"lhs": ["VARCHAR"], "rel": ["VARCHAR"], "rhs": ["VARCHAR"]}


def test_columns_keep_the_types_of_the_files(tmp_path):
    spec = make_spec(tmp_path, form="parquet", columns={"weight": "w"})
    (tmp_path / "day").mkdir()
    table = {"lhs": [1, 2], "rel": ["likes", "knows"], "rhs": [3, 1], "w": [0.5, 2.0], "more": [True, False]}
    pq.write_table(pa.table(table), tmp_path / "day" / "1.parquet")
    report, rows, _ = staged(tmp_path, spec, "out", threads=1)
    assert report.columns["lhs"] == ["BIGINT"]
    assert report.columns["more"] == ["BOOLEAN"]
    assert rows == [("1", "likes", "3", "0.5", None, None), ("2", "knows", "1", "2.0", None, None)]


@pytest.mark.parametrize("threads", [1, 4])
def test_same_files_give_the_same_bytes(tmp_path, threads):
    spec = make_spec(tmp_path)
    for part in range(3):
        rows = "".join(f"n{part}-{i},likes,n{i % 1000}\n" for i in range(200_000))
        put(tmp_path, f"lhs,rel,rhs\n{rows}", f"{part}.csv")
    found = {staged(tmp_path, spec, f"out{number}", threads=threads)[2] for number in range(3)}
    assert len(found) == 1
