"""Damage to a text file: refused by name, or without effect."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from s3fs.core import S3File

from pbg_tasks.config.run import SnapshotFile
from pbg_tasks.errors import InputError, StorageError
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.counting import count_snapshot
from pbg_tasks.prepare.difference import EDGE_HASHES
from pbg_tasks.prepare.snapshot import stage_snapshot
from pbg_tasks.prepare.text_files import MAX_LINE_BYTES, plain_texts
from pbg_tasks.storage.columnar import filesystem_for, list_files
from tests.prepare.inputs import GOOD, TYPED, check, make_spec, put, refusal

ROWS = "lhs,rel,rhs\n" + "".join(f"a{i * 7919 % 100003},likes,b{i * 104729 % 99991}\n" for i in range(1500))
READ_BLOCK = 1 << 16  # Arrow's reader accepts this: a member may end where one does
MiB = 1 << 20


def outcome(tmp_path, data, name="part.csv.gz"):
    """Return the rows of a file, or the text of its refusal."""
    root = tmp_path / str(len(list(tmp_path.iterdir())))
    root.mkdir()
    put(root, data, name)
    try:
        report = check(make_spec(root), root)
    except InputError as error:
        return str(error)
    return report.edges, report.duplicates, (root / "scratch" / EDGE_HASHES).read_bytes()


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def zstd(data):
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


@pytest.mark.parametrize(
    ("name", "pack"), [("part.csv.GZ", gzip.compress), ("part.csv.gzip", gzip.compress), ("part.csv.bz2", bz2.compress)]
)
def test_each_suffix_of_compression_is_read(tmp_path, name, pack):
    assert outcome(tmp_path, pack(ROWS.encode()), name) == outcome(tmp_path, ROWS.encode(), "plain.csv")


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("part.csv.gz", gzip.compress(ROWS.encode(), mtime=0)),
        ("part.csv.gz", gzip.compress(ROWS.encode(), 0, mtime=0)),
        ("part.csv.zst", zstd(ROWS.encode())),
    ],
    ids=["deflated", "stored", "zstd"],
)
def test_flipped_bit_is_refused_or_changes_nothing(tmp_path, name, packed):
    whole = outcome(tmp_path, packed, name)
    draw = random.Random(7)
    ends = [*range(80), *range(len(packed) * 8 - 64, len(packed) * 8)]
    bits = draw.sample(ends, 40) + [draw.randrange(len(packed) * 8) for _ in range(80)]
    found = [outcome(tmp_path, flipped(packed, bit), name) for bit in bits]
    refused = [each for each in found if isinstance(each, str)]
    assert all(each == whole for each in found if not isinstance(each, str))
    assert all(f"/day/{name}: cannot be read: " in each and "\n" not in each for each in refused)
    assert len(refused) >= 100


DEFLATED = gzip.compress(ROWS.encode(), mtime=0)
ZSTD = zstd(ROWS.encode())


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("part.csv.gz", DEFLATED[:-8] + bytes(4) + DEFLATED[-4:]),
        ("part.csv.gz", DEFLATED[:-4] + bytes(4)),
        ("part.csv.gz", DEFLATED[:-1]),
        ("part.csv.gz", DEFLATED[:-9]),
        ("part.csv.gz", DEFLATED[: len(DEFLATED) // 2]),
        ("part.csv.gz", DEFLATED[:5]),
        ("part.csv.bz2", bz2.compress(ROWS.encode())[:-5]),
        ("part.csv.bz2", flipped(bz2.compress(ROWS.encode()), 300)),
        ("part.csv.bz2", bz2.compress(GOOD.encode()) + bz2.compress(b"") + bz2.compress(b"c,likes,d\n")),
        ("part.csv.gz", DEFLATED + b"x"),
        ("part.csv.gz", DEFLATED + b"other bytes after the end"),
        ("part.csv.gz", DEFLATED + bytes(600)),
        ("part.csv.gz", DEFLATED + DEFLATED[:-2]),
        ("part.csv.gz", flipped(DEFLATED, len(DEFLATED) * 8 - 40) + DEFLATED),
        ("part.csv.gz", ROWS.encode()),
        ("part.csv.zst", ZSTD[:-1]),
        ("part.csv.zst", ZSTD[:-5]),
        ("part.csv.zst", ZSTD[: len(ZSTD) // 2]),
        ("part.csv.zst", ZSTD + b"x"),
        ("part.csv.zst", ZSTD + ZSTD[:-2]),
    ],
)
def test_checksum_end_or_rest_that_is_wrong_refused(tmp_path, name, data):
    found = outcome(tmp_path, data, name)
    assert isinstance(found, str)
    assert f"/day/{name}: cannot be read: " in found
    assert "the file is damaged, write it again" in found


def test_damaged_first_kilobyte_never_a_traceback(tmp_path):
    for tried in range(60):
        data = bytearray(DEFLATED)
        draw = random.Random(tried)
        for _ in range(draw.randint(1, 30)):
            data[draw.randrange(1000)] = draw.randrange(256)
        found = outcome(tmp_path, bytes(data))
        assert isinstance(found, str)
        assert "part.csv.gz: cannot be read: " in found


@pytest.mark.parametrize("damage", [lambda data: flipped(data, len(data) * 8 - 40), lambda data: data[:-9]])
def test_damage_found_by_every_reader(tmp_path, damage):
    put(tmp_path, damage(DEFLATED), "part.csv.gz")
    spec = make_spec(tmp_path)
    files = [SnapshotFile(uri=u, size=s, version=v) for u, s, v in list_files(spec.snapshots.resolve("day"))]
    for read in (count_snapshot, lambda *given: stage_snapshot(*given, "staged")):
        with connect(spec.resources, tmp_path) as connection, pytest.raises(InputError, match="is damaged"):
            read(connection, spec, files)


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_all_members_are_read(tmp_path, pack):
    name = "part.csv.gz" if pack is gzip.compress else "part.csv.zst"
    head, rest = ROWS[:9999].encode(), ROWS[9999:].encode()
    whole = outcome(tmp_path, ROWS, "part.csv")
    assert outcome(tmp_path, pack(head) + pack(b"") + pack(rest), name) == whole


def test_member_that_fills_a_read_is_checked(tmp_path):
    heads = (GOOD + "a,likes,b\n" * 6500 + f"{'a' * more},likes,b\n" for more in range(1, 4000))
    found = ((head, gzip.compress(head.encode(), 0, mtime=0)) for head in heads)
    head, member = next((head, member) for head, member in found if len(member) == READ_BLOCK)
    whole = outcome(tmp_path, member + gzip.compress(b"c,likes,d\n"))
    assert whole == outcome(tmp_path, head + "c,likes,d\n", "part.csv")
    for data in (member + b"rest", flipped(member, READ_BLOCK * 8 - 40) + member, member[:-1]):
        assert "is damaged" in outcome(tmp_path, data)


def test_damage_is_reported_for_its_own_file(tmp_path):
    put(tmp_path, gzip.compress(GOOD.encode()), "1.csv.gz")
    put(tmp_path, gzip.compress(GOOD.encode())[:-3], "2.csv.gz")
    put(tmp_path, GOOD, "3.csv")
    assert "/2.csv.gz: cannot be read: " in refusal(make_spec(tmp_path), tmp_path)


def test_broken_row_is_named_in_its_file(tmp_path):
    put(tmp_path, gzip.compress(GOOD.encode()), "1.csv.gz")
    put(tmp_path, gzip.compress(GOOD.encode() + b"a,likes\n"), "2.csv.gz")
    message = refusal(make_spec(tmp_path), tmp_path)
    assert "/2.csv.gz: cannot be read: " in message
    assert "Line: 5" in message


@pytest.mark.s3
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: flipped(data, 300),
        lambda data: flipped(data, len(data) * 8 - 40),
        lambda data: data[:-9],
        lambda data: data[:-8] + bytes(4) + data[-4:],
        lambda data: data[:1000],
    ],
    ids=["bit within", "bit of length", "cut", "checksum of zeros", "first kilobyte"],
)
def test_damage_in_s3_is_refused_by_name(s3_bucket, tmp_path, damage):
    uri = f"{s3_bucket}/day/part.csv.gz"
    filesystem_for(uri).pipe_file(uri, damage(DEFLATED))
    with pytest.raises(InputError, match=f"{uri}: cannot be read: "):
        check(make_spec(s3_bucket), tmp_path)


@pytest.mark.s3
def test_text_in_s3_takes_one_request(s3_bucket, tmp_path, monkeypatch):
    uri, text = f"{s3_bucket}/day/part.csv", "lhs,rel,rhs\n" + "a,likes,b\n" * 400_000
    filesystem_for(uri).pipe_file(uri, text.encode())
    asked, fetch = [], S3File._fetch_range
    monkeypatch.setattr(S3File, "_fetch_range", lambda *of: (asked.append(of[1:]), fetch(*of))[1])
    check(make_spec(s3_bucket), tmp_path)
    assert asked == [(0, len(text))]


@pytest.mark.s3
def test_replaced_while_read_is_refused(s3_bucket, tmp_path):
    """Replace a file in S3 after it was planned.

    It is refused before a byte of it is used.
    """
    uri = f"{s3_bucket}/day/part.csv.gz"
    filesystem = filesystem_for(uri)
    filesystem.pipe_file(uri, DEFLATED)
    spec = make_spec(s3_bucket)
    files = [SnapshotFile(uri=u, size=s, version=v) for u, s, v in list_files(uri)]
    with connect(spec.resources, tmp_path) as connection:
        (place,) = plain_texts(connection, files).values()
        assert Path(place).read_text(encoding="utf-8") == ROWS
        filesystem.pipe_file(uri, gzip.compress(GOOD.encode()))
        assert plain_texts(connection, files) == {uri: place}  # still the planned version
    (tmp_path / "later").mkdir()
    with connect(spec.resources, tmp_path / "later") as connection:
        with pytest.raises(InputError, match="changed since the run was planned"):
            plain_texts(connection, files)
        filesystem.rm(uri)
        with pytest.raises((InputError, StorageError), match=uri):
            plain_texts(connection, files)
        assert not [*(tmp_path / "later" / "text").glob("*.txt")]


@pytest.mark.parametrize("name", ["part.csv", "part.csv.gz", "part.csv.zst"])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_long_line_is_named(tmp_path, name, place):
    line = "a" * (40 * MiB)
    text = {
        "first": f"{line}\n{GOOD}",
        "middle": f"{GOOD}{line},likes,b\n{GOOD}",
        "last": f"{GOOD}{line}",
    }[place].encode()
    data = {"csv": bytes, "gz": gzip.compress, "zst": zstd}[name.rpartition(".")[2]](text)
    number = 1 if place == "first" else 5
    found = outcome(tmp_path, data, name)
    assert f"/day/{name}, line {number}: is longer than {MAX_LINE_BYTES} bytes" in found


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_of_just_the_limit_is_read(tmp_path, end):
    wide = "x" * (MAX_LINE_BYTES - len("a,likes,b,") - len(end))
    text = f"lhs,rel,rhs,more{end}a,likes,b,{wide}{end}c,likes,d,y{end}"
    assert outcome(tmp_path, gzip.compress(text.encode()))[0] == 2
    assert outcome(tmp_path, text, "part.csv")[0] == 2


@pytest.mark.parametrize("wide", ["x" * 500_000, f'"{"x" * 500_000}"'])
def test_first_line_of_one_wide_field_is_read(tmp_path, wide):
    assert outcome(tmp_path, f"{wide},lhs,rel,rhs\n1,a,likes,b\n".encode(), "part.csv")[0] == 1
    found = outcome(tmp_path, f"{wide}\n1,a,likes,b\n".encode(), "part.csv")
    assert "part.csv: no column 'lhs'" in found
    assert len(found) < 1000


PLAN = """
from pbg_tasks.cli import main
from pbg_tasks.memory.machine import peak_bytes
try:
    main()
finally:
    print(peak_bytes())
"""


def test_bomb_ends_within_bounded_memory_and_time(tmp_path):
    folder = tmp_path / "day"
    folder.mkdir()
    bomb = gzip.compress(GOOD.encode()) + gzip.compress(b"a" * (64 * MiB)) * 64
    assert len(bomb) < 5 * MiB  # of a line of 4 GiB
    (folder / "bomb.csv.gz").write_bytes(bomb)
    spec = tmp_path / "spec.yaml"
    snapshots = {"location": f"{tmp_path}/{{snapshot}}", "format": "csv"}
    graph = {"graph": "g", "store": str(tmp_path / "store"), "snapshots": snapshots, "model": TYPED}
    spec.write_text(json.dumps(graph), encoding="utf-8")
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PLAN, "plan", str(spec), "--snapshot", "day"],
        env={**os.environ, "PBG_SCRATCH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == InputError.exit_code, done.stderr
    assert f"bomb.csv.gz, line 5: is longer than {MAX_LINE_BYTES} bytes" in done.stderr.splitlines()[-1]
    assert int(done.stdout) < 600 * MiB
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("name", ["part.csv", "part.csv.gz"])
@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("a\0b,likes,b\n", "line 5: id with a NUL byte in column lhs (1 such rows"),
        ("a,likes,\0\n", "line 5: id with a NUL byte in column rhs (1 such rows"),
        ("a,li\0kes,b\n", "line 5: relation with a NUL byte in column rel (1 such rows"),
        (f"a,{'r' * 5000},b\n", "line 5: relation longer than 4096 bytes in column rel (1 such rows"),
    ],
)
def test_bytes_no_name_may_have_are_named(tmp_path, name, row, expected):
    text = (GOOD + row).encode()
    assert f"/day/{name}, {expected}" in outcome(tmp_path, gzip.compress(text) if name.endswith("gz") else text, name)


COLUMNS = {
    "binary": (([b"a"],), "BLOB"),
    "fixed": (([b"abc"], pa.binary(3)), "BLOB"),
    "list": (([["a"]],), r"VARCHAR\[\]"),
    "struct": (([{"a": 1}],), r"STRUCT\(a BIGINT\)"),
    "map": (([[("a", 1)]], pa.map_(pa.string(), pa.int64())), r"MAP\(VARCHAR, BIGINT\)"),
}


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("column", ["lhs", "rel", "rhs", "weight"])
def test_column_of_no_text_is_named(tmp_path, kind, column):
    values, named = COLUMNS[kind]
    (tmp_path / "day").mkdir()
    table = {"lhs": ["a"], "rel": ["likes"], "rhs": ["x"], "weight": [1.0], column: pa.array(*values)}
    pq.write_table(pa.table(table), tmp_path / "day" / "p.parquet")
    spec = make_spec(tmp_path, form="parquet", columns={"weight": "weight"})
    with pytest.raises(InputError, match=rf"p\.parquet: column '{column}' \(columns\.{column}\) is of type {named}, "):
        check(spec, tmp_path)


@pytest.mark.parametrize("column", ["lhs", "rel", "rhs"])
def test_decimals_that_would_be_rounded_are_refused(tmp_path, column):
    (tmp_path / "day").mkdir()
    wide = pa.array([10**50 + 1], pa.decimal256(60, 0))
    table = {"lhs": ["a"], "rel": ["likes"], "rhs": ["x"], "weight": wide, column: wide}
    pq.write_table(pa.table(table), tmp_path / "day" / "p.parquet")
    spec = make_spec(tmp_path, form="parquet", columns={"weight": "weight"})
    with pytest.raises(InputError, match=rf"'{column}' \(columns\.{column}\) is of type DECIMAL\(60,0\), which "):
        check(spec, tmp_path)


def test_weight_of_many_digits_is_read(tmp_path):
    (tmp_path / "day").mkdir()
    wide = pa.array([2], pa.decimal256(60, 0))
    pq.write_table(
        pa.table({"lhs": ["a"], "rel": ["likes"], "rhs": ["x"], "weight": wide}), tmp_path / "day" / "p.parquet"
    )
    assert check(make_spec(tmp_path, form="parquet", columns={"weight": "weight"}), tmp_path).edges == 1


PLAIN = [
    ("a", pa.string()),
    ("a", pa.dictionary(pa.int32(), pa.string())),
    ("a", pa.large_string()),
    (1, pa.uint64()),
    (1, pa.int8()),
    (1.5, pa.float64()),
    (True, pa.bool_()),
    (1, pa.decimal128(30, 2)),
    (1, pa.date32()),
    (1, pa.timestamp("us", "UTC")),
    (1, pa.time64("us")),
]


@pytest.mark.parametrize(("value", "kind"), PLAIN, ids=str)
def test_column_of_text_or_numbers_is_read(tmp_path, value, kind):
    (tmp_path / "day").mkdir()
    unasked = pa.array([b"\xff"])
    table = pa.table({"lhs": pa.array([value], kind), "rel": ["likes"], "rhs": ["x"], "unasked": unasked})
    pq.write_table(table, tmp_path / "day" / "p.parquet")
    assert check(make_spec(tmp_path, form="parquet"), tmp_path).edges == 1
