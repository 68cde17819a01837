"""Errors as users see them: one line each.

Libraries and servers are real, and may put any text into theirs.
"""

from __future__ import annotations

import http.server
import os
import random
import socket
import subprocess
import sys
import threading

import duckdb
import h5py
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbg_tasks.config import Resources
from pbg_tasks.errors import SHOWN, FormatError, InputError, PbgError, one_line
from pbg_tasks.formats.edges import read_edges
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.snapshot import stage_snapshot
from pbg_tasks.prepare.validate import check_rows
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.directory.importing import EdgeLists, found_lists, graph_of_lists
from pbg_tasks.tasks.exchange.import_vectors import import_embeddings
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.nightly.validate import validate
from tests.defects.imports import Import
from tests.tasks.conftest import ring


@given(text=st.text(alphabet="ab \n\r\t\v\f\0\x1b\x85\u2028\u2029é", max_size=80))
def test_any_message_is_one_printable_line(text):
    line = str(FormatError(text))
    assert line.isprintable()
    assert len(line.splitlines()) <= 1
    assert str(InputError(line)) == line  # wrapping it again changes nothing
    assert [each for each in line if each in "abé"][: text.count("a")] or "a" not in text


def test_long_message_keeps_both_ends():
    told = str(FormatError(f"x.parquet: {'middle ' * 1000}; mend the file"))
    assert told.startswith("x.parquet: middle")
    assert told.endswith("; mend the file")
    assert f"[... {11 + 7000 + 15 - SHOWN} characters left out ...]" in told
    assert one_line("a" * SHOWN) == "a" * SHOWN


def test_escape_sequences_of_names_reach_no_terminal():
    assert str(InputError("name '\x1b[2Jx'")) == r"name '\x1b[2Jx'"


def message_of(action):
    """Return the message of an action's error, or None.

    Errors of other kinds are raised.
    """
    try:
        action()
    except PbgError as error:
        text = str(error)
        assert text.isprintable(), text
        assert len(text.splitlines()) == 1
        return text
    return None


def parquet_edges(path):
    lhs, rel, rhs = zip(*ring(134), strict=True)
    pq.write_table(pa.table({"lhs": lhs, "rel": rel, "rhs": rhs}), path, row_group_size=100)
    return path


def damages(good, seed, count):
    """Yield damaged copies of a file.

    They are cut off, or have bytes changed all over the file, most of them in its footer.
    """
    rng = random.Random(seed)
    yield from (
        b"",
        b"PAR1",
        good[:-1],
        good[: len(good) // 2],
        good[4:],
        good + b"x",
        b"PAR1" + os.urandom(64) + b"PAR1",
    )
    for _ in range(count):
        data, footer = bytearray(good), rng.random() < 0.7
        for _ in range(rng.choice((1, 1, 4))):
            data[-rng.randrange(1, min(len(good), 1500)) if footer else rng.randrange(len(good))] = rng.randrange(256)
        yield bytes(data)


@pytest.mark.rotated(3)
def test_damaged_parquet_snapshot_ends_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PBG_SCRATCH", str(tmp_path / "scratch"))
    work = Import(tmp_path)
    how = EdgeLists("parquet", "lhs", "rhs", "rel")
    path = parquet_edges(tmp_path / "edges.parquet")
    found = []
    scratch = tmp_path / "database"
    scratch.mkdir()
    graph = graph_of_lists(work.config(1), how, Resources(memory_gb=1, threads=1))
    for data in damages(path.read_bytes(), 1, 150):
        path.write_bytes(data)

        def check():
            with connect(graph.resources, scratch) as connection:
                staged = stage_snapshot(connection, graph, found_lists(str(path)), "list_0")
                check_rows(connection, graph, staged)

        found.append(message_of(check))
        for file in scratch.iterdir():
            if file.is_file():
                file.unlink()
    messages = [text for text in found if text is not None]
    assert len(messages) > 50
    assert [text for text in messages if "edges.parquet" not in text] == []


def test_damaged_parquet_vectors_end_in_one_line(tmp_path, scratch):
    path = tmp_path / "v.parquet"
    names = [f"name-{number}" for number in range(200)]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 800, pa.float32()), 4)
    pq.write_table(pa.table({"id": names, "embedding": vectors}), path)
    found = []
    for number, data in enumerate(damages(path.read_bytes(), 2, 150)):
        path.write_bytes(data)
        found.append(
            message_of(lambda out=str(tmp_path / f"out{number}"): import_embeddings("parquet", str(path), out))
        )
    messages = [text for text in found if text is not None]
    assert len(messages) > 50
    assert [text for text in messages if "v.parquet" not in text] == []


def test_duckdb_paragraphs_end_in_one_line(place):
    """DuckDB reports an unreadable text in ten lines of hints."""
    file = place.snapshot("d1", ring(40))
    text = file.read_bytes()
    broken = {
        "bytes": text[:200] + b"\xff\xfe\xff" + text[200:],
        "fields": text + b"only-one-field\n",
        "quote": text + b'"never\tclosed\tfield\n',
        "zero": text[:100] + b"\0" * 50 + text[100:],
    }
    for data in broken.values():
        file.write_bytes(data)
        message = message_of(lambda: validate(plan(place.spec, "d1")["run"]))
        assert message is None or "d1.tsv" in message


def test_duckdb_memory_error_is_one_line(tmp_path):
    """Out of memory, DuckDB suggests settings over several lines."""

    def sort():
        with connect(Resources(memory_gb=0.01, threads=1), tmp_path) as connection:
            connection.execute("SET max_temp_directory_size = '1MB'")
            connection.execute(
                "CREATE TABLE t AS SELECT random() x, random()::VARCHAR y FROM range(20000000) ORDER BY x, y"
            )

    with pytest.raises(duckdb.Error) as bare:
        duckdb.sql("SELECT nothing FROM range(3)")
    assert "\n" in str(bare.value)  # what this is about
    assert "resources.memory_gb" in message_of(sort)


def run(*arguments, **environment):
    """Run the command in a process of its own.

    Returns its stderr and its status.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pbg_tasks", *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    return done.stderr, done.returncode


def last_line(stderr):
    assert "Traceback" not in stderr
    errors = [line for line in stderr.splitlines() if "error:" in line]
    assert stderr.splitlines()[-1:] == errors
    return errors[0]


@pytest.mark.rotated(3)
@pytest.mark.s3
def test_botocore_errors_are_one_line(place, s3_bucket):
    """Try a missing server or bucket, wrong keys, an invalid address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{free.getsockname()[1]}"
    run_url = f"{s3_bucket}/runs/2026-11-01-0123456789ab"
    cases = [
        (["show", run_url], {}, 2),
        (["show", "s3://no-such-bucket-here/runs/2026-11-01-0123456789ab"], {}, None),
        (["show", run_url], {"AWS_SECRET_ACCESS_KEY": "wrong\nkey"}, 9),
        (["show", run_url], {"AWS_ENDPOINT_URL": dead, "AWS_ENDPOINT_URL_S3": dead}, 6),
        (["show", run_url], {"AWS_ENDPOINT_URL": "no\naddress", "AWS_ENDPOINT_URL_S3": "no\naddress"}, 2),
    ]
    for arguments, environment, status in cases:
        stderr, code = run(*arguments, **environment)
        assert last_line(stderr).startswith("error: "), stderr
        assert code == status or status is None, (arguments, environment, stderr)


@pytest.mark.s3
def test_store_answers_of_paragraphs_are_one_line(s3_bucket, monkeypatch):
    """botocore quotes the server's answer, which may be an HTML page."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = (
                b"<?xml version='1.0'?>\n<Error>\n <Code>Odd\nCode</Code>\n <Message>line\none\r\ntwo</Message></Error>"
            )
            self.send_response(400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_HEAD = do_GET

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}")
        message = message_of(lambda: open_store("s3://bucket/place").get("key"))
        server.shutdown()
    assert "line one two" in message


def test_command_prints_damage_as_one_line(place):
    (place.root / "edges").mkdir()
    path = parquet_edges(place.root / "edges" / "d1.parquet")
    data = bytearray(path.read_bytes())
    data[-40:-8] = b"\n\xff" * 16
    path.write_bytes(bytes(data))
    location = {"location": f"{place.root}/edges/{{snapshot}}.parquet"}
    place.write_spec(snapshots=location)
    stderr, status = run("run", str(place.spec), "--snapshot", "d1")
    assert last_line(stderr).startswith("error: input: ")
    assert "d1.parquet" in stderr
    assert status == InputError.exit_code


def test_damaged_hdf5_ends_in_one_line(tmp_path):
    path = tmp_path / "edges_0_0.h5"
    with h5py.File(path, "w") as file:
        for name in ("lhs", "rhs", "rel"):
            file.create_dataset(name, data=list(range(50)))
    for data in damages(path.read_bytes(), 3, 60):
        path.write_bytes(data)
        message_of(lambda: read_edges(path))
