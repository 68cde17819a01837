"""Both sides of each comparison on small graphs.

They do the same work and find the same figures.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.speed import epochs, evaluating, exporting, footprint, importing, libraries, steps
from benchmarks.speed.engines import available
from benchmarks.speed.harness import Tools
from benchmarks.speed.memory import Communities
from benchmarks.speed.workloads import FB15K, LIVEJOURNAL, TRIPLES, RandomGraph, placed
from pbg_tasks.config import ConfigSchema
from pbg_tasks.errors import ResourceError
from pbg_tasks.formats.edges import edge_file_name, read_edges
from pbg_tasks.formats.entities import read_entity_count, read_entity_names
from pbg_tasks.tasks.directory.importing import import_edges
from pbg_tasks.tasks.training.train import train_directory

SMALL = {"dimension": 8, "num_uniform_negs": 10}


@pytest.fixture
def tools(pytestconfig, tmp_path):
    found = Tools(tmp_path / "run", Path(pytestconfig.cache.mkdir("torchbiggraph")).parent, tmp_path, pairs=1)
    try:
        found.pbg_python()
    except ResourceError as error:
        pytest.skip(str(error))
    return found


def write_triples(path, lines=1000, entities=100):
    rows = (f"n{i % entities}\tr{i % 3}\tn{(i * 7 + i // entities) % entities}\n" for i in range(lines))
    path.write_text("".join(rows))


@pytest.mark.parametrize("partitions", [1, 4])
def test_random_graph_has_equal_partitions(partitions, tmp_path):
    config = ConfigSchema(**RandomGraph(1001, 5000, partitions).write(LIVEJOURNAL, tmp_path))
    counts = [read_entity_count(tmp_path / "entities", "user_id", part) for part in range(partitions)]
    assert sum(counts) == 1001
    assert max(counts) - min(counts) <= 1
    result = train_directory(config.model_copy(update={"dimension": 4}))
    assert result["edges_trained"] == 5000


@pytest.mark.interop
@pytest.mark.parametrize("workers", [1, 2])
def test_both_sides_train_the_requested_edges(workers, tools, tmp_path):
    config = RandomGraph(500, 3000).write(LIVEJOURNAL | SMALL, tmp_path / "graph")
    race = steps._Race("LJ", config, available(config), ours=2000, theirs=1500)
    with race.our_worker(tools, workers) as ours, tools.theirs("Training", config=config, workers=workers) as pbg:
        assert [side().value for side in race.our_sides(ours).values()] == [2000] * len(race.variants)
        assert pbg("train", edges=1500).value == 1500


@pytest.mark.interop
def test_epoch_of_both_trains_every_edge_once(tools, tmp_path):
    config = RandomGraph(400, 1500, partitions=2).write(epochs.MODEL | SMALL, tmp_path / "graph")
    theirs = config | {"checkpoint_path": str(tmp_path / "theirs"), "num_epochs": 3}
    with (
        tools.ours("benchmarks.speed.epochs:Ours", config=config) as ours,
        tools.theirs("Epochs", config=theirs) as pbg,
    ):
        assert [side("epoch").value for side in (ours, pbg, ours, pbg)] == [1500] * 4
        shares = ours("shares").value
    assert len(shares) == 2
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.interop
def test_both_sides_import_rank_and_export_alike(tools, tmp_path):
    source = tmp_path / "edges.tsv"
    write_triples(source)
    config = placed(FB15K | SMALL, tmp_path / "graph")
    theirs = placed(FB15K | SMALL, tmp_path / "theirs")
    importer = importing.Ours(config)
    with tools.theirs("Conversion", config=theirs) as pbg:
        assert importer.import_tsv([str(source)]) == pbg("import_tsv", files=[str(source)]).value == 1000
    train_directory(ConfigSchema(**config))
    everything = config | {"relations": [config["relations"][0] | {"all_negs": True}], "num_uniform_negs": 0}
    with tools.theirs("Evaluation", config=everything) as pbg:
        mrr = pbg("rank", known=config["edge_paths"]).value
    assert evaluating.Ours(config).rank(config["edge_paths"]) == pytest.approx(mrr, abs=2e-6)
    written = {side: [str(tmp_path / f"{side}-{what}") for what in ("entities", "relations")] for side in ("we", "pbg")}
    assert exporting.Ours(config, 100).export_tsv(*written["we"]) == 500
    with tools.theirs("Conversion", config=config) as pbg:
        assert pbg("export_tsv", entities=written["pbg"][0], relations=written["pbg"][1]).value == 100
    ours, others = (sorted(Path(paths[0]).read_text().splitlines()) for paths in written.values())
    assert [line.split("\t")[0] for line in ours] == [line.split("\t")[0] for line in others]


def test_random_edges_are_written_as_triples(tmp_path):
    path = tmp_path / "edges.tsv"
    importing.write_edges_tsv(path, edges=2000, entities=50)
    config = ConfigSchema(**placed(LIVEJOURNAL, tmp_path / "graph"))
    result = import_edges(config, [str(path)], TRIPLES)
    assert result["edges"] == 2000
    assert 40 < result["entities"]["total"] <= 50


@pytest.mark.parametrize("library", ["DuckDB", "Arrow"])
def test_library_imports_every_edge_into_its_bucket(library, tmp_path):
    source = tmp_path / "edges.tsv"
    write_triples(source, lines=500, entities=50)
    parts = range(libraries.PARTITIONS)
    parted = LIVEJOURNAL | {"entities": {"user_id": {"num_partitions": len(parts)}}}
    config = placed(parted, tmp_path / "graph")
    bare = getattr(libraries, library)(config)
    assert [bare.import_tsv([str(source)]) for _ in range(2)] == [500, 500]
    entities, edges = Path(config["entity_path"]), Path(config["edge_paths"][0])
    counts = [read_entity_count(entities, "user_id", part) for part in parts]
    names = [read_entity_names(entities, "user_id", part, count=counts[part]) for part in parts]
    found = []
    for i in parts:
        for j in parts:
            bucket = read_edges(edges / edge_file_name(i, j))
            assert not bucket.rel.any()
            found += [(names[i][lhs], names[j][rhs]) for lhs, rhs in zip(bucket.lhs, bucket.rhs, strict=True)]
    lines = (line.split("\t") for line in source.read_text().splitlines())
    assert sorted(found) == sorted((lhs, rhs) for lhs, _, rhs in lines)


def test_arrow_exports_the_same_table(tmp_path):
    config = RandomGraph(300, 500, names=True).write(epochs.MODEL | {"dimension": 4}, tmp_path / "graph")
    train_directory(ConfigSchema(**config))
    ours, arrow = (
        side(config, str(tmp_path / name))
        for name, side in (("ours", libraries.OurExport), ("arrow", libraries.ArrowExport))
    )
    assert [side.tsv() for side in (ours, arrow)] == [side.parquet() for side in (ours, arrow)] == [300, 300]
    texts = [(tmp_path / side / "entities.tsv").read_text() for side in ("ours", "arrow")]
    (names, vectors), (others, rounded) = (zip(*map(split_row, text.splitlines()), strict=True) for text in texts)
    assert names == others
    assert np.allclose(vectors, rounded, rtol=0, atol=1e-9)
    tables = [pq.read_table(tmp_path / name) for name in ("ours/parquet/user_id.parquet", "arrow/table.parquet")]
    assert tables[0].to_pylist() == tables[1].to_pylist()


def split_row(line):
    name, *numbers = line.split("\t")
    return name, list(map(float, numbers))


@pytest.mark.interop
def test_memory_of_all_processes_is_measured(tools):
    (found,) = footprint._compared(tools, Communities(1600, 2000), 2, {"2 in memory": 2})
    assert found.name == "peak memory, 1.6 k entities: 2 partitions, 2 in memory"
    assert found.ours > 50e6
    assert found.theirs > found.ours  # it has four processes with torch
    with tools.scratch() as root:
        config = Communities(1600, 2000).write(str(root), 2) | {"num_epochs": 1}
        with tools.theirs("WholeTraining", config=config) as pbg:
            assert pbg("train").value == 2000
