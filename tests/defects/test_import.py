"""Defects of PBG's importers that must not return.

They are numbered as in docs/differences-from-pbg.md.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pbg_tasks.formats.edges import count_edges, edge_file_name, read_edges
from pbg_tasks.tasks.directory.importing import EdgeLists, import_edges
from pbg_tasks.tasks.training.train import train_directory
from tests.commands import pbg
from tests.defects.imports import TSV, Import, ring


@pytest.fixture
def work(tmp_path):
    return Import(tmp_path)


def test_01_weights_keep_their_fractions(work):
    rows = [(*row, weight) for row, weight in zip(ring(4), (0.5, 2.7, 1, 0), strict=True)]
    import_edges(work.config(1), [work.write(rows)], EdgeLists("tsv", "0", "2", "1", "3"))
    edges = read_edges(work.root / "train" / edge_file_name(0, 0))
    assert edges.weight.dtype == np.float32
    names = work.names(0)
    weights = {names[lhs]: float(weight) for lhs, weight in zip(edges.lhs, edges.weight, strict=True)}
    assert weights == {"e0": 0.5, "e1": np.float32(2.7), "e2": 1.0, "e3": 0.0}


def test_02_bucket_is_not_larger_than_its_edges(work):
    import_edges(work.config(2), [work.write(ring(2000))], TSV)
    sizes = [path.stat().st_size for path in (work.root / "train").glob("*.h5")]
    assert len(sizes) == 4
    assert sum(sizes) < 4 * 16_000 + 2000 * 24


def test_03_empty_bucket_has_file_and_is_trained(work):
    import_edges(work.config(8), [work.write(ring(6))], TSV)
    counts = [count_edges(path) for path in (work.root / "train").glob("*.h5")]
    assert len(counts) == 64
    assert sum(counts) == 6
    assert train_directory(work.config(8))["edges_trained"] == 6


@pytest.mark.parametrize("partitions", [3, 7, 12, 20, 24, 50])
def test_04_any_number_of_partitions_is_possible(work, partitions):
    types = {"n": {"num_partitions": partitions}, "m": {"num_partitions": 1}}
    relations = [{"name": "all", "lhs": "n", "rhs": "m", "operator": "diagonal"}]  # a row of buckets, not a square
    config = work.config(entities=types, relations=relations)
    result = import_edges(config, [work.write((f"e{i}", "r", "hub") for i in range(100))], TSV)
    assert result["entities"]["total"] == 101
    names = [name for partition in range(partitions) for name in work.names(partition)]
    assert sorted(names) == sorted(f"e{i}" for i in range(100))


def test_05_importing_again_keeps_every_id(work):
    import_edges(work.config(), [work.write(ring(40))], TSV)
    before, digests = [work.names(partition) for partition in range(2)], work.digests()
    import_edges(work.config(), [work.write(ring(40))], TSV)
    assert work.digests() == digests
    result = import_edges(work.config(), [work.write([*ring(30), *ring(20, first=100)])], TSV)
    assert result["entities"] == {"total": 60, "new": 20, "kept": 30, "gone": 10, "returned": 0, "absent": 0}
    for partition, names in enumerate(before):
        assert work.names(partition)[: len(names)] == names


def test_05_ids_that_pbg_assigned_are_kept(work):
    """They follow no rule: PBG shuffles."""
    folder = work.root / "entities"
    folder.mkdir()
    given = [["e3", "e0"], ["e2", "e1"]]
    for partition, names in enumerate(given):
        (folder / f"entity_names_n_{partition}.json").write_text(json.dumps(names))
        (folder / f"entity_count_n_{partition}.txt").write_text("2\n")
    (folder / "dynamic_rel_names.json").write_text('["r1"]')
    (folder / "dynamic_rel_count.txt").write_text("1\n")
    import_edges(work.config(), [work.write(ring(6))], TSV)
    assert [work.names(partition)[:2] for partition in range(2)] == given
    assert json.loads((folder / "dynamic_rel_names.json").read_text()) == ["r1", "r0"]


def test_06_changed_input_is_not_skipped(work):
    config = work.config(1)
    import_edges(config, [work.write(ring(5))], TSV)
    import_edges(config, [work.write(ring(9))], TSV)
    assert count_edges(work.root / "train" / edge_file_name(0, 0)) == 9


@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
def test_13_usual_parquet_files_are_read_by_names(work, compression):
    path = work.root / "edges.parquet"
    columns = zip(*ring(5), strict=True)
    table = pa.table(dict(zip(("source", "kind", "target"), map(list, columns), strict=True)))
    pq.write_table(table.append_column("score", pa.array([0.5] * 5)), path, compression=compression)
    config = work.root / "config.json"
    config.write_text(json.dumps(work.config(1).to_pbg()))
    columns = ["--lhs-col", "source", "--rel-col", "kind", "--rhs-col", "target", "--weight-col", "score", "--json"]
    done = pbg("import", "parquet", config, path, *columns)
    assert json.loads(done.stdout)["edges"] == 5
    assert read_edges(work.root / "train" / edge_file_name(0, 0)).weight.tolist() == [0.5] * 5
