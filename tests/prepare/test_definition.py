"""One definition of preparation: bytes that depend on nothing but the snapshots."""

from __future__ import annotations

import hashlib

import pyarrow.parquet as pq
import pytest

from pbg_tasks.prepare.buckets import write_buckets
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.difference import EDGE_HASHES
from pbg_tasks.prepare.ids import assign_ids
from pbg_tasks.prepare.snapshot import STAGED, open_staged
from pbg_tasks.prepare.validate import validate_snapshot
from tests.prepare.random_graphs import RandomGraph
from tests.rotation import of_today


def prepare(graph, spec, key, root, before):
    """Run the three steps, and return the directories that they fill."""
    snapshot, entities, edges, scratch = (
        root / f"{key}-{name}" for name in ("snapshot", "entities", "edges", "scratch")
    )
    for directory in (snapshot, entities, edges, scratch):
        directory.mkdir(parents=True)
    files = graph.files(key)
    hashes, ids, returned = (
        (before[0] / EDGE_HASHES, before[1], before[2] / "returned.parquet") if before else (None, None, None)
    )
    with connect(spec.resources, scratch) as connection:
        validate_snapshot(connection, spec, files, before=hashes, out=snapshot)
        staged = open_staged(files, snapshot / STAGED)
        assign_ids(connection, spec, staged, snapshot=key, previous=ids, out=entities)
        write_buckets(connection, spec, staged, entities=entities, returned_previous=returned, out=edges)
    return snapshot, entities, edges


def fingerprint(directories):
    return {
        f"{directory.name}/{path.relative_to(directory)}": hashlib.sha256(path.read_bytes()).hexdigest()
        for directory in directories
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("seed", of_today(range(20), 9))
def test_threads_and_memory_change_no_byte(tmp_path, seed):
    graph = RandomGraph(tmp_path, 2000, seed)
    keys = [graph.write(day) for day in range(2)]
    found = []
    for name, resources in (("one", {"threads": 1}), ("three", {"threads": 3, "memory_gb": 0.5})):
        before = None
        for key in keys:
            before = prepare(graph, graph.spec(**resources), key, tmp_path / name, before)
            found.append(fingerprint(before))
    assert found[0] == found[2]
    assert found[1] == found[3]
    assert found[0] != found[1]


def test_list_of_returned_pairs_has_one_schema(tmp_path):
    """Also where nothing was drawn, or nothing returned."""
    graph, before, nullable = RandomGraph(tmp_path, 3, 3), None, set()
    for day in range(3):
        before = prepare(graph, graph.spec(), graph.write(day), tmp_path, before)
        nullable |= {field.nullable for field in pq.read_schema(before[2] / "returned.parquet")}
    assert nullable == {False}
