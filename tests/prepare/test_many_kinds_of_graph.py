"""Kinds of graphs that the plain implementation leaves out.

Dynamic relations, weights, files of several forms, S3, and little memory.
"""

from __future__ import annotations

import gzip
import hashlib

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from pbg_tasks.config import GraphSpec, SnapshotFile
from pbg_tasks.config.base import parse
from pbg_tasks.errors import ConfigError, FormatError, ResourceError, StorageError
from pbg_tasks.formats.edges import read_edges
from pbg_tasks.formats.entities import read_entity_names, read_relation_count, read_relation_names
from pbg_tasks.prepare.buckets import write_buckets
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.ids import assign_ids, entity_ids_file_name, partition_of
from pbg_tasks.prepare.snapshot import StagedFiles, reading, stage_snapshot
from pbg_tasks.prepare.sql import DUCKDB, quoted
from pbg_tasks.storage.columnar import filesystem_for, list_files

EDGES = [(f"n{i % 40}", f"r{i % 3}", f"n{(i * 7 + 1) % 43}") for i in range(200)]


def make_spec(root, *, form="tsv", partitions=2, dynamic=True, location=None, memory_gb=1, **keys):
    model = {
        "entities": {"n": {"num_partitions": partitions}},
        "relations": [{"name": name, "lhs": "n", "rhs": "n"} for name in (("all",) if dynamic else ("r0", "r1", "r2"))],
        "dynamic_relations": dynamic,
        "global_emb": False,
        "dimension": 4,
    }
    return parse(
        GraphSpec,
        {
            "graph": "g",
            "store": "s",
            "snapshots": {"location": location or f"{root}/{{snapshot}}", "format": form},
            "model": model,
            "split": {"valid": 0.1, "test": 0.1},
            "resources": {"memory_gb": memory_gb, "threads": 2},
            **keys,
        },
        source="spec",
    )


def planned(spec, day):
    return tuple(SnapshotFile(uri=u, size=s, version=v) for u, s, v in list_files(spec.snapshots.resolve(day)))


def put(root, day, rows, name="edges.tsv", header=("lhs", "rel", "rhs"), pack=bytes):
    path = root / day / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack("".join("\t".join(map(str, row)) + "\n" for row in (header, *rows)).encode()))
    return path


def prepare(spec, root, day, *, previous=None, limit=None):
    """Run both steps and return the folders of entities and edges."""
    entities, edges, scratch = (root / f"{day}-{what}" for what in ("entities", "edges", "scratch"))
    for directory in (entities, edges, scratch):
        directory.mkdir()
    files = planned(spec, day)
    before, returned = (previous[0], previous[1] / "returned.parquet") if previous else (None, None)
    with connect(spec.resources, scratch) as connection:
        if limit is not None:
            connection.execute(f"SET max_temp_directory_size = {quoted(limit)}")
        assign_ids(connection, spec, files, snapshot=day, previous=before, out=entities)
        write_buckets(connection, spec, files, entities=entities, returned_previous=returned, out=edges)
    return entities, edges


def fingerprint(*directories):
    return {
        path.relative_to(directory): hashlib.sha256(path.read_bytes()).hexdigest()
        for directory in directories
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def read_back(spec, entities, edges):
    """Return names and weight of every edge of a one-type graph.

    Names are (lhs, rel, rhs).
    """
    count = spec.model.entities["n"].num_partitions
    names, relations = [read_entity_names(entities, "n", p) for p in range(count)], read_relation_names(entities)
    found = []
    for path in edges.rglob("edges_*.h5"):
        i, j = map(int, path.stem.split("_")[1:])
        listed = read_edges(path)
        weights = [None] * len(listed) if listed.weight is None else listed.weight.tolist()
        for lhs, rel, rhs, weight in zip(listed.lhs, listed.rel, listed.rhs, weights, strict=True):
            found.append((names[i][lhs], relations[rel], names[j][rhs], weight))
    return found


@settings(max_examples=50, deadline=None)
@given(name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30))
def test_hashes_are_those_of_hashlib(name):
    digest = hashlib.md5(name.encode()).digest()
    query = f"SELECT {DUCKDB.md5_head('name')}, {DUCKDB.md5_tail('name')} FROM (SELECT ? AS name)"
    with duckdb.connect() as connection:
        head, tail = connection.execute(query, [name]).fetchall()[0]
    assert (head, tail) == (int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little"))
    assert partition_of(name, 7) == tail % 7


def test_dynamic_relations_are_only_ever_appended(tmp_path):
    spec = make_spec(tmp_path)
    put(tmp_path, "d1", [("a", "zebra", "b"), ("b", "mouse", "c")])
    put(tmp_path, "d2", [("a", "zebra", "b"), ("b", "ant", "c"), ("c", "owl", "a")])
    one = prepare(spec, tmp_path, "d1")
    two = prepare(spec, tmp_path, "d2", previous=one)
    assert read_relation_names(one[0]) == ["mouse", "zebra"]
    assert read_relation_names(two[0]) == ["mouse", "zebra", "ant", "owl"]
    assert read_relation_count(two[0]) == 4
    assert sorted(edge[:3] for edge in read_back(spec, *two)) == [
        ("a", "zebra", "b"),
        ("b", "ant", "c"),
        ("c", "owl", "a"),
    ]


def test_fractional_weights_survive(tmp_path):
    spec = make_spec(tmp_path, columns={"weight": "w"}, split={"valid": 0, "test": 0})
    rows = [(*edge, number / 8) for number, edge in enumerate(EDGES)]
    put(tmp_path, "d", rows, header=("lhs", "rel", "rhs", "w"))
    assert sorted(read_back(spec, *prepare(spec, tmp_path, "d"))) == sorted(rows)


def test_files_of_several_forms_are_one_snapshot(tmp_path):
    spec = make_spec(tmp_path, dynamic=False, split={"valid": 0, "test": 0})
    put(tmp_path, "d", EDGES[:50], "1.tsv")
    put(tmp_path, "d", EDGES[50:90], "2.tsv.gz", pack=gzip.compress)
    put(tmp_path, "d", EDGES[90:120], "3.tsv")
    put(tmp_path, "d", [("x", r, q, p) for p, r, q in EDGES[120:]], "4.tsv", header=("", "rel", "rhs", "lhs"))
    assert sorted(edge[:3] for edge in read_back(spec, *prepare(spec, tmp_path, "d"))) == sorted(EDGES)


def test_parquet_names_may_be_numbers_and_text(tmp_path):
    spec = make_spec(tmp_path, form="parquet", split={"valid": 0, "test": 0})
    (tmp_path / "d").mkdir()
    pq.write_table(pa.table({"lhs": [1], "rel": ["r"], "rhs": [2]}), tmp_path / "d" / "1.parquet")
    pq.write_table(pa.table({"rel": ["r"], "rhs": ["1"], "lhs": ["x"]}), tmp_path / "d" / "2.parquet")
    found = sorted(edge[:3] for edge in read_back(spec, *prepare(spec, tmp_path, "d")))
    assert found == [("1", "r", "2"), ("x", "r", "1")]


def test_snapshot_on_s3_gives_bytes_of_local_one(tmp_path, s3_bucket):
    spec = make_spec(tmp_path, dynamic=False)
    put(tmp_path, "d", EDGES[:100], "1.tsv")
    put(tmp_path, "d", EDGES[100:], "2.tsv.gz", pack=gzip.compress)
    here = fingerprint(*prepare(spec, tmp_path, "d"))
    filesystem_for(s3_bucket).put(f"{tmp_path}/d", f"{s3_bucket}/d", recursive=True)
    there = tmp_path / "there"
    there.mkdir()
    remote = make_spec(tmp_path, dynamic=False, location=f"{s3_bucket}/{{snapshot}}")
    assert fingerprint(*prepare(remote, there, "d")) == here


class _BrokenLine(MemoryFileSystem):
    """A store that lists a file and fails when it is read."""

    protocol = "broken"

    def glob(self, path, **_):
        return [path]

    def info(self, path, **_):
        return {"name": path, "size": 1000, "type": "file", "created": None}

    def _open(self, *_args, **_options):
        file = super()._open("/full", "wb")
        file.write(b"a" * 1000)
        file.seek(0)
        file.read = self._fail
        return file

    @staticmethod
    def _fail(*_):
        raise OSError("Connection reset by peer")


def test_store_that_fails_while_read_is_retryable(tmp_path):
    spec = make_spec(tmp_path)
    with connect(spec.resources, tmp_path) as connection:
        connection.register_filesystem(_BrokenLine(skip_instance_cache=True))
        files = [SnapshotFile(uri="broken://x.csv", size=1000, version="1")]
        with pytest.raises(StorageError, match="Connection reset by peer") as caught, reading(files):
            connection.execute(
                "SELECT max(a) FROM read_csv(['broken://x.csv'], columns={a: 'VARCHAR'}, auto_detect=false)"
            ).fetchall()
    assert caught.value.retryable
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("before", "now"), [(4, 2), (2, 4), (1, 3)])
def test_ids_with_other_partition_count_are_refused(tmp_path, before, now):
    put(tmp_path, "d1", EDGES)
    put(tmp_path, "d2", EDGES)
    one = prepare(make_spec(tmp_path, partitions=before), tmp_path, "d1")
    with pytest.raises(ConfigError, match=f"entities.n.num_partitions = {now}"):
        prepare(make_spec(tmp_path, partitions=now), tmp_path, "d2", previous=one)


@pytest.mark.parametrize("name", [entity_ids_file_name("n"), "returned.parquet"])
@pytest.mark.parametrize("damage", ["missing", "cut", "foreign"])
def test_damaged_file_of_release_before_is_named(tmp_path, name, damage):
    spec = make_spec(tmp_path)
    put(tmp_path, "d1", EDGES)
    put(tmp_path, "d2", EDGES)
    one = prepare(spec, tmp_path, "d1")
    path = next(directory / name for directory in one if (directory / name).exists())
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        pq.write_table(pa.table({"other": [1]}), path)
    with pytest.raises(FormatError) as caught:
        prepare(spec, tmp_path, "d2", previous=one)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_ids_are_named(tmp_path):
    spec = make_spec(tmp_path)
    put(tmp_path, "d", EDGES)
    (tmp_path / "dynamic_rel_names.json").write_text('["r0"]')
    files, out = planned(spec, "d"), tmp_path / "out"
    with connect(spec.resources, tmp_path) as connection, pytest.raises(FormatError, match=r"entity_ids_n\.parquet"):
        write_buckets(connection, spec, files, entities=tmp_path, returned_previous=None, out=out)
    assert not out.exists()


def test_little_memory_gives_the_same_bytes_by_spilling(tmp_path):
    query = "SELECT hash(i) % 100000 AS lhs, 'r' || i % 3 AS rel, hash(i + 1) % 100000 AS rhs FROM range(400000) t(i)"
    (tmp_path / "d").mkdir()
    duckdb.sql(f"COPY ({query}) TO {quoted(str(tmp_path / 'd' / 'e.parquet'))}")
    ample, scant = (make_spec(tmp_path, form="parquet", dynamic=False, memory_gb=gb) for gb in (2, 0.06))
    roots = [tmp_path / name for name in ("ample", "scant", "none")]
    for root in roots:
        root.mkdir()
    expected = fingerprint(*prepare(ample, roots[0], "d"))
    assert fingerprint(*prepare(scant, roots[1], "d")) == expected
    with pytest.raises(ResourceError, match=r"resources\.memory_gb \(--memory-gb\) = 0\.06"):
        prepare(scant, roots[2], "d", limit="1MB")


def test_staged_files_read_once_give_equal_bytes(tmp_path):
    spec = make_spec(tmp_path)
    paths = [put(tmp_path, "d", EDGES), put(tmp_path, "d", [("x", "r1", "y")], "more.tsv")]
    expected = fingerprint(*prepare(spec, tmp_path, "d"))
    files, entities, edges = planned(spec, "d"), tmp_path / "staged-entities", tmp_path / "staged-edges"
    for directory in (entities, edges, tmp_path / "scratch"):
        directory.mkdir()
    with connect(spec.resources, tmp_path / "scratch") as connection:
        parts = [stage_snapshot(connection, spec, [file], f"part_{i}") for i, file in enumerate(files)]
        for path in paths:
            path.unlink()
        staged = StagedFiles.together(parts)
        assert tuple(staged) == files
        assign_ids(connection, spec, staged, snapshot="d", previous=None, out=entities)
        write_buckets(connection, spec, staged, entities=entities, returned_previous=None, out=edges)
    assert fingerprint(entities, edges) == expected
