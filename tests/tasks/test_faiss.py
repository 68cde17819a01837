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
from pbg_tasks.tasks.exchange.export import export
from tests.model.plugins import package_folder
from tests.tasks.exchanges import model

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
