"""Staged rows of a snapshot, used in place of its files."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pbg_tasks.config import Resources, SnapshotFile
from pbg_tasks.errors import InputError
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.snapshot import STAGED, open_snapshot, open_staged, stage_snapshot, write_staged
from pbg_tasks.prepare.sources import snapshot_source
from pbg_tasks.prepare.validate import validate_snapshot
from pbg_tasks.storage import open_store
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


def parquet(rows):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"lhs": ["a"] * rows, "rel": ["likes"] * rows, "rhs": ["b"] * rows}), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("where", ["local", pytest.param("s3", marks=pytest.mark.s3)])
@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("read", [write_staged, lambda *given: stage_snapshot(*given[:-1], "rows")])
def test_file_written_on_while_read_is_refused(request, tmp_path, monkeypatch, form, where, read):
    root = request.getfixturevalue("s3_bucket") if where == "s3" else str(tmp_path)
    uri = f"{root}/day/part.{form}"
    store = open_store(root)

    def write(rows):
        content = parquet(rows) if form == "parquet" else b"lhs,rel,rhs\n" + b"a,likes,b\n" * rows
        store.put(f"day/part.{form}", content)

    write(5)
    spec = make_spec(root, form=form)
    (file,) = (SnapshotFile(uri=u, size=s, version=v) for u, s, v in list_files(uri))
    source = type(snapshot_source(spec.snapshots))
    scan = source.scan
    monkeypatch.setattr(source, "scan", lambda *given, **named: (write(9), scan(*given, **named))[1])
    with connect(spec.resources, tmp_path) as connection:
        if form == "csv" and where == "s3":  # read from a copy, which is of the version that was planned
            read(connection, spec, [file], tmp_path)
        else:
            with pytest.raises(InputError, match=f"{uri}: changed since the run was planned"):
                read(connection, spec, [file], tmp_path)


NAMES_OF_MOMENTS = """
import sys
from pathlib import Path
from pbg_tasks.config import Resources
from pbg_tasks.prepare.connection import connect
with connect(Resources(), Path(sys.argv[1])) as connection:
    print(connection.execute("SELECT lhs::VARCHAR FROM read_parquet(?)", [sys.argv[2]]).fetchall()[0][0])
"""


def test_moment_is_named_in_utc(tmp_path):
    pq.write_table(pa.table({"lhs": pa.array([0], pa.timestamp("us", "UTC"))}), tmp_path / "p.parquet")
    command = [sys.executable, "-c", NAMES_OF_MOMENTS, str(tmp_path), str(tmp_path / "p.parquet")]
    done = subprocess.run(command, env={**os.environ, "TZ": "Asia/Tokyo"}, capture_output=True, text=True, check=True)
    assert done.stdout == "1970-01-01 00:00:00+00\n"


@pytest.mark.parametrize("threads", [1, 4])
def test_same_files_give_the_same_bytes(tmp_path, threads):
    spec = make_spec(tmp_path)
    for part in range(3):
        rows = "".join(f"n{part}-{i},likes,n{i % 1000}\n" for i in range(200_000))
        put(tmp_path, f"lhs,rel,rhs\n{rows}", f"{part}.csv")
    found = {staged(tmp_path, spec, f"out{number}", threads=threads)[2] for number in range(3)}
    assert len(found) == 1
