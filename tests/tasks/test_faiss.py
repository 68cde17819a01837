"""FAISS indexes whose neighbours are the model's, or none."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pbg_tasks import Model
from pbg_tasks.config import GraphSpec
from pbg_tasks.config.base import parse
from pbg_tasks.config.exports import ExportOptions
from pbg_tasks.errors import ConfigError
from pbg_tasks.publish.exchange import contents
from pbg_tasks.tasks.exchange.export import export
from tests.model.plugins import package_folder
from tests.tasks.exchanges import files, model

NEIGHBORS = 5
MANHATTAN = """
import torch

def manhattan(query_CSD, candidate_CKD):
    return -torch.cdist(query_CSD, candidate_CKD, p=1)
"""


@pytest.fixture
def manhattan(tmp_path):
    with package_folder(tmp_path / "packages") as write:
        write("manhattan", MANHATTAN, {"pbg_tasks.comparators": {"manhattan": "manhattan:manhattan"}})
        yield


def exported(data, out):
    options = ExportOptions(types=("user",), index="Flat", parameters="", neighbors=NEIGHBORS)
    return export("faiss", str(data.checkpoint), str(out), options=options)["measured"]["recall"]["user"]


@pytest.mark.parametrize("global_emb", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("comparator", ["dot", "cos", "l2", "squared_l2"])
def test_index_has_the_neighbours_of_model(tmp_path, comparator, bias, global_emb):
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    data = model(tmp_path / "data", comparator=comparator, bias=bias, global_emb=global_emb)
    measured = exported(data, tmp_path / "out")
    index = faiss.read_index(str(tmp_path / "out" / "user.faiss"))
    names = json.loads((tmp_path / "out" / "user.json").read_text())
    with Model.open(str(data.checkpoint)) as opened:
        expected = [[answer.name for answer in listed] for listed in opened.neighbors(names, NEIGHBORS, "user")]
        vectors = opened.embedding(names, "user")[:, measured["skipped_dimensions"] :]
    if measured["normalized"]:
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    _, found = index.search(np.ascontiguousarray(vectors), NEIGHBORS + 1)
    without_self = [[number for number in row if number != own][:NEIGHBORS] for own, row in enumerate(found.tolist())]
    assert [[names[number] for number in row] for row in without_self] == expected
    assert (measured["recall"], measured["skipped_dimensions"]) == (1.0, int(bias))


def test_comparator_of_other_package_is_refused(tmp_path, manhattan):
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    data = model(tmp_path / "data", comparator="manhattan")
    with pytest.raises(ConfigError, match=r"has nothing for comparator 'manhattan': .*export npy or parquet instead"):
        exported(data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_spec_with_other_comparator_is_refused_early(manhattan):
    spec = {
        "graph": "g",
        "store": "/store",
        "snapshots": {"location": "/snapshots/{snapshot}.tsv"},
        "model": {
            "entities": {"n": {"num_partitions": 1}},
            "relations": [{"name": "r", "lhs": "n", "rhs": "n", "operator": "none"}],
            "dimension": 4,
            "comparator": "manhattan",
        },
        "exports": [{"format": "faiss"}],
    }
    with pytest.raises(ConfigError, match="export 'faiss': format faiss compares by dot, cos, l2, squared_l2"):
        parse(GraphSpec, spec, source="graph.yaml")
    parse(GraphSpec, spec | {"exports": [{"format": "npy"}]}, source="graph.yaml")


@pytest.mark.parametrize("index", ["IVF4,Flat", "PCA4,IVF4,Flat"])
def test_shards_merge_into_the_whole_index(tmp_path, index, monkeypatch, capfd):
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    monkeypatch.setattr(contents, "_BLOCK_VALUES", 8 * 7)  # 7 rows a block
    data, found = model(tmp_path / "data"), []
    for name, shard_rows in (("whole", 0), ("shards", 10), ("again", 10)):
        options = ExportOptions(
            types=("user",),
            index=index,
            parameters="nprobe=4",
            neighbors=NEIGHBORS,
            min_recall=0,
            shard_rows=shard_rows,
        )
        export("faiss", str(data.checkpoint), str(tmp_path / name), options=options)
        read = faiss.read_index(str(tmp_path / name / "user.faiss"), faiss.IO_FLAG_ONDISK_SAME_DIR if shard_rows else 0)
        found.append(read.search(data.vectors["user"], NEIGHBORS))
    assert read.ntotal == 61
    assert "resizing" not in capfd.readouterr().out  # results are there
    for scores, ids in found[1:]:
        assert np.array_equal(ids, found[0][1])
        assert np.array_equal(scores, found[0][0])
    names = ["_manifest.json", "user.faiss", "user.ivfdata", "user.json"]
    assert files(tmp_path / "shards") == names
    for name in names[1:]:
        assert (tmp_path / "shards" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_index_without_lists_is_refused_in_shards(tmp_path):
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    data = model(tmp_path / "data")
    with pytest.raises(ConfigError, match="--index"):
        export("faiss", str(data.checkpoint), str(tmp_path / "out"), options=ExportOptions(shard_rows=10))
    assert not (tmp_path / "out" / "_manifest.json").exists()
