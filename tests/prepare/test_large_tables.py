"""Tables of several files, with few rows each."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pbg_tasks.checkpoint import ObjectRecord, VerifiedFiles
from pbg_tasks.errors import FormatError
from pbg_tasks.formats import tables
from pbg_tasks.prepare import spark
from pbg_tasks.prepare.difference import EDGE_HASHES
from pbg_tasks.prepare.ids import entity_ids_file_name
from pbg_tasks.storage import open_store
from tests.prepare.random_graphs import RandomGraph
from tests.rotation import of_today
from tests.two_engines import PARTS, by_duckdb

ROWS = 400


def names_of(spec):
    return [f"snapshot/{EDGE_HASHES}", *(f"entities/{entity_ids_file_name(entity)}" for entity in spec.model.entities)]


def files_of(path):
    """Return the files of a table."""
    found = tables.present_files(path.name, [each.name for each in path.parent.iterdir()])
    return [path.with_name(name) for name in found]


def others(night, spec):
    """Return hashes of all files but the tables."""
    left_out = {path for name in names_of(spec) for path in files_of(night / name)}
    return {
        str(path.relative_to(night)): hashlib.sha256(path.read_bytes()).hexdigest()
        for part in PARTS
        for path in (night / part).rglob("*")
        if path.is_file() and path not in left_out
    }


@pytest.mark.parametrize("rows", [7, 50])
@pytest.mark.parametrize("seed", of_today(range(20), 7))
def test_several_files_have_the_rows_of_one(tmp_path, monkeypatch, seed, rows):
    graph = RandomGraph(tmp_path, ROWS, seed)
    spec, keys = graph.spec(), [graph.write(day) for day in range(2)]
    one, several = None, None
    for key in keys:
        one, expected = by_duckdb(graph, key, tmp_path / "one", one)
        with monkeypatch.context() as patch:
            patch.setattr(tables, "ROWS_OF_A_FILE", rows)
            several, found = by_duckdb(graph, key, tmp_path / "several", several)
        assert [each.to_json() for each in found] == [each.to_json() for each in expected]
        assert others(several, spec) == others(one, spec)
        for name in names_of(spec):
            whole, files = pq.read_table(one / name), [pq.read_table(path) for path in files_of(several / name)]
            assert len(files) >= len(whole) / rows
            assert not (several / name).exists() or len(whole) <= rows
            check = check_hashes if name.endswith(EDGE_HASHES) else check_ids
            check(whole, files, rows)
    # A night of one file continues one of several.
    again, _ = by_duckdb(graph, keys[1], tmp_path / "again", tmp_path / "several" / keys[0])
    assert all((again / name).read_bytes() == (one / name).read_bytes() for name in names_of(spec))
    assert others(again, spec) == others(one, spec)


def check_ids(whole, files, rows):
    assert pa.concat_tables(files) == whole
    assert {len(file) for file in files[:-1]} <= {rows}
    assert len(files[-1]) <= rows


def check_hashes(whole, files, rows):
    bits = (len(files) - 1).bit_length()
    assert len(files) == 1 << bits
    assert not bits or len(whole) > rows << bits - 1
    for number, file in enumerate(files):
        own = [row for row in whole.to_pylist() if row["hash"] >> 64 - bits == number]
        assert file.to_pylist() == own, number


@pytest.mark.parametrize("table", [0, 1])
@pytest.mark.parametrize("missing", [0, 1, -1])
def test_missing_file_of_table_is_named(tmp_path, monkeypatch, table, missing):
    graph = RandomGraph(tmp_path, ROWS, 0)
    keys = [graph.write(day) for day in range(2)]
    monkeypatch.setattr(tables, "ROWS_OF_A_FILE", 25)
    night, _ = by_duckdb(graph, keys[0], tmp_path / "nights", None)
    files = files_of(night / names_of(graph.spec())[table])
    assert len(files) > 2
    files[missing].unlink()
    with pytest.raises(FormatError) as caught:
        by_duckdb(graph, keys[1], tmp_path / "nights", night)
    assert str(files[missing]) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_manifest_that_lacks_file_is_refused(tmp_path):
    names = tables.file_names(EDGE_HASHES, 3)
    records = {name: ObjectRecord(sha256="0" * 64, size=1) for name in (names[0], names[2])}
    here = VerifiedFiles(open_store(str(tmp_path)), "run/snapshot", 0, records)
    listed = {name: spark.StoredFile(name, each.sha256, each.size) for name, each in records.items()}
    there = spark.StoredFiles(str(tmp_path), "run/snapshot", listed)
    for read in (lambda: here.fetch_table(EDGE_HASHES, tmp_path), lambda: there.table(EDGE_HASHES)):
        with pytest.raises(FormatError, match=rf"run/snapshot: no file '2-of-3\.{EDGE_HASHES}' in its manifest"):
            read()
    for read in (lambda: here.fetch_table("ids", tmp_path), lambda: there.table("ids")):
        with pytest.raises(FormatError, match="run/snapshot: no file 'ids' in its manifest"):
            read()
