"""Staged rows of a snapshot, used in place of its files."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pbg_tasks.config import Resources, SnapshotFile
from pbg_tasks.errors import InputError
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.counting import count_snapshot
from pbg_tasks.prepare.snapshot import STAGED, open_snapshot, open_staged, stage_snapshot, write_staged
from pbg_tasks.prepare.sources import snapshot_source
from pbg_tasks.prepare.validate import validate_snapshot
from pbg_tasks.progress import Progress
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


@pytest.mark.parametrize(("small", "last"), [(1 << 30, "lhs,rel,rhs"), (1 << 30, "rhs,rel,lhs"), (0, "lhs,rel,rhs")])
def test_text_files_are_staged_alike_by_any_threads(tmp_path, monkeypatch, small, last):
    """DuckDB reads more than two files a thread in another way.

    One thread also writes several scans in another way.
    """
    monkeypatch.setattr("pbg_tasks.prepare.sources.text._READ_BY_ONE", small)
    spec = make_spec(tmp_path)
    for part, names in enumerate(("lhs,rel,rhs", "lhs,rel,rhs", last)):
        lines = (f"{part}-{row},likes,{row}-{part}" for row in range(500_000))  # more than DuckDB reads at a time
        put(tmp_path, "\n".join([names, *lines]), f"{part}.csv")
    files = [SnapshotFile(uri=u, size=s, version=v) for u, s, v in list_files(spec.snapshots.resolve("day"))]
    found = set()
    for threads in (1, 8):
        out = tmp_path / f"out-{threads}"
        out.mkdir()
        with connect(Resources(threads=threads), out) as connection:
            write_staged(connection, spec, files, out)
        found.add((out / STAGED).read_bytes())
    assert len(found) == 1


def test_columns_keep_the_types_of_the_files(tmp_path):
    spec = make_spec(tmp_path, form="parquet", columns={"weight": "w"})
    (tmp_path / "day").mkdir()
    table = {"lhs": [1, 2], "rel": ["likes", "knows"], "rhs": [3, 1], "w": [0.5, 2.0], "more": [True, False]}
    pq.write_table(pa.table(table), tmp_path / "day" / "1.parquet")
    report, rows, _ = staged(tmp_path, spec, "out", threads=1)
    assert report.columns["lhs"] == ["BIGINT"]
    assert report.columns["more"] == ["BOOLEAN"]
    assert rows == [("1", "likes", "3", "0.5", None, None), ("2", "knows", "1", "2.0", None, None)]


def test_copies_of_text_go_before_the_checks(tmp_path):
    """The checks spill to the same disk."""
    put(tmp_path, gzip.compress(b"lhs,rel,rhs\na,likes,b\n"), "1.csv.gz")
    files = [SnapshotFile(uri=u, size=s, version=v) for u, s, v in list_files(str(tmp_path / "day"))]
    with connect(Resources(threads=1), tmp_path) as connection:
        write_staged(connection, make_spec(tmp_path), files, tmp_path)
    assert [*(tmp_path / "text").iterdir()] == []


def parquet(rows):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"lhs": ["a"] * rows, "rel": ["likes"] * rows, "rhs": ["b"] * rows}), sink)
    return sink.getvalue().to_pybytes()


ROWS = 20_000
"""Of a file that is copied as it is."""


def write_parts(root, *, lhs="lhs", kind="string", more=(), rows_of_groups=ROWS):
    """Write two files of text; the second has the ends exchanged."""
    (root / "day").mkdir()
    names, ones = (pa.array(listed).cast(kind) for listed in ([f"{row % 997}" for row in range(ROWS)], ["1"] * ROWS))
    likes, further = pa.array(["likes"] * ROWS), dict.fromkeys(more, ones)
    for part, (left, right) in enumerate([(names, ones), (ones, names)], 1):
        table = pa.table({lhs: left, "rhs": right, "rel": likes, **further})
        pq.write_table(table, root / "day" / f"{part}.parquet", row_group_size=rows_of_groups)
    return [SnapshotFile(uri=u, size=s, version=v) for u, s, v in list_files(str(root / "day"))]


def stage(root, spec, files):
    """Stage files; return the names of the copies, and the rows."""
    out = root / "out"
    out.mkdir()
    with connect(Resources(threads=1), root) as connection:
        validate_snapshot(connection, spec, files, before=None, out=out)
        open_snapshot(connection, spec, open_staged(files, out / STAGED))
        rows = connection.execute("SELECT lhs, rel, rhs, weight FROM raw").fetchall()
    return sorted(path.name for path in out.glob(f"*{STAGED}")), rows


def test_files_as_staged_are_copied(tmp_path):
    files = write_parts(tmp_path)
    copies, rows = stage(tmp_path, make_spec(tmp_path, form="parquet"), files)
    assert copies == [f"1-of-2.{STAGED}", f"2-of-2.{STAGED}"]
    assert [(tmp_path / "out" / copy).read_bytes() for copy in copies] == [
        Path(file.uri).read_bytes() for file in files
    ]
    names = [f"{row % 997}" for row in range(ROWS)]
    assert rows == [(name, "likes", "1", None) for name in names] + [("1", "likes", name, None) for name in names]


def test_staged_bytes_are_those_of_plain_copy(tmp_path):
    """Runs that earlier versions began go on."""
    spec, source, plain = make_spec(tmp_path, form="parquet"), tmp_path / "day" / "1.parquet", tmp_path / "plain"
    source.parent.mkdir()
    with connect(Resources(threads=1), tmp_path) as connection:
        rows = f"SELECT 'a' || range AS lhs, 'likes' AS rel, 'b' AS rhs FROM range({ROWS})"
        connection.execute(f"COPY (SELECT *, 1 AS more FROM ({rows})) TO '{source}' (FORMAT parquet)")
        connection.execute(f"COPY (SELECT lhs, rel, rhs FROM '{source}') TO '{plain}' (FORMAT parquet)")
    stage(tmp_path, spec, [SnapshotFile(uri=u, size=s, version=v) for u, s, v in list_files(str(source.parent))])
    assert (tmp_path / "out" / STAGED).read_bytes() == plain.read_bytes()


@pytest.mark.parametrize("copied", [False, True])
def test_wrong_statistics_lose_no_edge(tmp_path, copied):
    """Read statistics that order text by bytes with a sign.

    Spark 2 and Hive 2 wrote such ones.
    """
    least, most = b"aimez", "été".encode()
    names, path = [least.decode(), most.decode()], tmp_path / "day" / "1.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"lhs": ["a"] * ROWS, "rel": names * (ROWS // 2), "rhs": ["b"] * ROWS}), path)
    data = path.read_bytes()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    path.write_bytes(data[:begin] + data[begin:].replace(least, b"other").replace(most, least).replace(b"other", most))
    relations = [{"name": name, "lhs": "n", "rhs": "n"} for name in names]
    model = {"entities": {"n": {"num_partitions": 1}}, "relations": relations, "dimension": 4}
    spec = make_spec(tmp_path, form="parquet", model=model)
    files = [SnapshotFile(uri=u, size=s, version=v) for u, s, v in list_files(str(path.parent))]
    with connect(Resources(threads=1), tmp_path) as connection:
        if copied:
            files, _ = write_staged(connection, spec, files, tmp_path)
            assert (tmp_path / STAGED).read_bytes() == path.read_bytes()
        assert count_snapshot(connection, spec, files).edges == ROWS


@pytest.mark.parametrize(
    "parts", [{"lhs": "left"}, {"kind": "int64"}, {"more": ["x"]}, {"rows_of_groups": 500}, {"more": ["weight"]}]
)
def test_other_files_are_staged_as_one(tmp_path, parts):
    files = write_parts(tmp_path, **parts)
    spec = make_spec(tmp_path, form="parquet", columns={"lhs": parts.get("lhs", "lhs")})
    copies, rows = stage(tmp_path, spec, files)
    assert copies == [STAGED]
    assert rows[ROWS + 2] == ("1", "likes", "2", None)
    assert len(rows) == 2 * ROWS


def test_bad_row_of_a_copy_is_named(tmp_path):
    (_, second) = write_parts(tmp_path)
    table = pq.read_table(second.uri)
    pq.write_table(table.set_column(0, "lhs", pa.array(["1"] * 7 + [""] + ["1"] * (ROWS - 8))), second.uri)
    files = [SnapshotFile(uri=u, size=s, version=v) for u, s, v in list_files(str(tmp_path / "day"))]
    with pytest.raises(InputError, match=r"day/2\.parquet, row 8: empty id in column lhs"):
        stage(tmp_path, make_spec(tmp_path, form="parquet"), files)


def test_damaged_file_that_is_copied_is_named(tmp_path):
    (_, second) = write_parts(tmp_path)
    data = bytearray(Path(second.uri).read_bytes())
    data[200:600] = b"\xff" * 400  # within a compressed page
    Path(second.uri).write_bytes(data)
    files = [SnapshotFile(uri=u, size=s, version=v) for u, s, v in list_files(str(tmp_path / "day"))]
    with pytest.raises(InputError, match=r"day/2\.parquet: cannot be read"):
        stage(tmp_path, make_spec(tmp_path, form="parquet"), files)


def test_one_of_many_copies_is_named(tmp_path):
    write_parts(tmp_path)
    source = tmp_path / "day" / "1.parquet"
    for part in range(3, 12):
        (tmp_path / "day" / f"{part}.parquet").write_bytes(source.read_bytes())
    files = [SnapshotFile(uri=u, size=s, version=v) for u, s, v in list_files(str(tmp_path / "day"))]
    eleventh = files[10].uri
    data = bytearray(Path(eleventh).read_bytes())
    data[200:600] = b"\xff" * 400  # within a compressed page
    Path(eleventh).write_bytes(data)
    files = [SnapshotFile(uri=u, size=s, version=v) for u, s, v in list_files(str(tmp_path / "day"))]
    with pytest.raises(InputError, match=f"^{eleventh}: cannot be read"):
        stage(tmp_path, make_spec(tmp_path, form="parquet"), files)


def test_file_with_the_longer_name_is_named(tmp_path):
    put(tmp_path, "lhs,rel,rhs\na,likes,b\n", "000000_0")
    damaged = put(tmp_path, "lhs,rel,rhs\na,likes\n", "000000_0_copy_1")
    files = [SnapshotFile(uri=u, size=s, version=v) for u, s, v in list_files(str(tmp_path / "day"))]
    with pytest.raises(InputError, match=f"^{damaged}: cannot be read"):
        stage(tmp_path, make_spec(tmp_path), files)


@pytest.mark.parametrize("where", ["local", pytest.param("s3", marks=pytest.mark.s3)])
@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("least", [5, ROWS])
@pytest.mark.parametrize("read", [write_staged, lambda *given: stage_snapshot(*given[:-1], "rows")])
def test_file_written_on_while_read_is_refused(request, tmp_path, monkeypatch, form, where, read, least):
    root = request.getfixturevalue("s3_bucket") if where == "s3" else str(tmp_path)
    uri = f"{root}/day/part.{form}"
    store = open_store(root)

    def write(rows):
        content = parquet(rows) if form == "parquet" else b"lhs,rel,rhs\n" + b"a,likes,b\n" * rows
        store.put(f"day/part.{form}", content)

    write(least)
    spec = make_spec(root, form=form)
    (file,) = (SnapshotFile(uri=u, size=s, version=v) for u, s, v in list_files(uri))
    source = type(snapshot_source(spec.snapshots))
    scan = source.scan
    monkeypatch.setattr(source, "scan", lambda *given, **named: (write(least + 4), scan(*given, **named))[1])
    with connect(spec.resources, tmp_path) as connection:
        if form == "csv" and where == "s3":  # read from a copy, which is of the version that was planned
            read(connection, spec, [file], tmp_path)
        else:
            with pytest.raises(InputError, match=f"{uri}: changed since the run was planned"):
                read(connection, spec, [file], tmp_path)


@pytest.mark.parametrize("where", ["local", pytest.param("s3", marks=pytest.mark.s3)])
def test_file_replaced_while_copied_is_refused(request, tmp_path, monkeypatch, where):
    root = request.getfixturevalue("s3_bucket") if where == "s3" else str(tmp_path)
    store = open_store(root)
    numbers = np.random.default_rng(0).integers(1 << 62, size=800_000)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"lhs": numbers.astype(str), "rel": ["likes"] * 800_000, "rhs": numbers.astype(str)}), sink)
    content = sink.getvalue().to_pybytes()
    assert len(content) > 2 * (8 << 20)  # more than is fetched at once
    store.put("day/1.parquet", content)
    (file,) = (SnapshotFile(uri=u, size=s, version=v) for u, s, v in list_files(f"{root}/day/1.parquet"))
    advance = Progress.advance
    monkeypatch.setattr(
        Progress, "advance", lambda *given: (store.put("day/1.parquet", parquet(ROWS)), advance(*given))
    )
    spec = make_spec(root, form="parquet")
    with (
        connect(spec.resources, tmp_path) as connection,
        pytest.raises(InputError, match=f"{file.uri}: changed since the run was planned"),
    ):
        write_staged(connection, spec, [file], tmp_path)


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
