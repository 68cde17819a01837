from __future__ import annotations

import json

import pytest

from pbg_tasks.config import ModelConfig
from pbg_tasks.config.registry import COMPARATORS, LOSSES, OPERATORS, REGULARIZERS
from pbg_tasks.native import coverage, instruction_set, library
from pbg_tasks.tasks.view.info import info
from pbg_tasks.training.engine.choice import engine_name, make_engine
from tests.model.plugins import package_folder

KEYS = {
    "entities": {"e": {"num_partitions": 1}},
    "relations": [{"name": "r", "lhs": "e", "rhs": "e"}],
    "dimension": 8,
}
PLUGINS = """
from pbg_tasks.model.operators import Operator

class Same(Operator):
    def initial(self, dimension):
        return {}

    def forward(self, x_ND, params):
        return x_ND

def dot(query_CSD, candidate_CKD):
    return query_CSD @ candidate_CKD.mT

def mean(positive_B, negative_BK, margin):
    return negative_BK.mean(1) - positive_B

def square(modulus):
    return modulus ** 2
"""
# Everything that `info` lists as left to torch, with changes of a config that are examples.
LEFT = {
    "entity types with featurized: true": [{"entities": {"e": {"num_partitions": 1, "featurized": True}}}],
    "operators, comparators, losses and regularizers of other packages": [
        {"relations": [{"name": "r", "lhs": "e", "rhs": "e", "operator": "other"}]},
        {"comparator": "other"},
        {"loss_fn": "other"},
        {"regularizer": "other"},
    ],
    "mask_known_negatives: true": [{"mask_known_negatives": True}],
    "precision: bf16, on a CPU without AVX512_BF16": [{"precision": "bf16"}],
    "device: cuda (or num_gpus: 1)": [{"num_gpus": 1}],
}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    places = {"entity_path": str(tmp_path), "edge_paths": [str(tmp_path)], "checkpoint_path": str(tmp_path)}
    path.write_text(json.dumps(KEYS | places))
    return str(path)


@pytest.fixture
def plugins(tmp_path):
    """Install a package with one class of each kind."""
    points = {"operators": "Same", "comparators": "dot", "losses": "mean", "regularizers": "square"}
    with package_folder(tmp_path / "plugins") as write:
        write("others", PLUGINS, {f"pbg_tasks.{kind}": {"other": f"others:{name}"} for kind, name in points.items()})
        yield


def test_info_lists_the_installed_parts():
    found = info()
    assert ("native" in found["engines"]) == (library() is not None)
    assert found["native"] == instruction_set() or "not built" in found["native"]
    assert "torch" in found["packages"]


@pytest.mark.skipif(library() is None, reason="no native library")
def test_info_names_engine_of_config_with_reason(config):
    because = "it computes all of the config, and no GPU is asked for"
    assert info(config) == {"config": config, "engine": "native", "because": because}
    left = info(config, ["mask_known_negatives=true"])
    assert left["engine"] == "torch"
    assert "mask_known_negatives: true" in left["because"]


@pytest.mark.skipif(library() is None, reason="no native library")
def test_info_names_engine_of_graph_spec(tmp_path):
    spec, location = tmp_path / "g.yaml", str(tmp_path / "{snapshot}.csv")
    spec.write_text(
        json.dumps({"graph": "g", "store": str(tmp_path), "snapshots": {"location": location}, "model": KEYS})
    )
    assert info(str(spec))["engine"] == "native"
    assert "mask_known_negatives: true" in info(str(spec), ["model.mask_known_negatives=true"])["because"]
    assert info(str(spec), ["train.device=cuda"]) == {
        "config": str(spec),
        "engine": "torch",
        "because": "it computes on the GPU",
    }
    assert info(str(spec), ["train.engine=torch"])["because"] == "train.engine names it"


@pytest.mark.skipif(library() is None, reason="no native library")
def test_everything_listed_is_left_to_torch(monkeypatch, plugins):
    monkeypatch.setattr(coverage, "instruction_set", lambda: "avx512")
    assert engine_name("auto", ModelConfig.model_validate(KEYS)) == ("native", "")
    assert info()["left_to_torch"] == list(LEFT)
    for changes in (changes for several in LEFT.values() for changes in several):
        config = ModelConfig.model_validate(KEYS | changes)
        name, reason = engine_name("auto", config)
        assert (name, bool(reason)) == ("torch", True)
        if not config.num_gpus:  # there may be no GPU
            assert make_engine("auto", config, 1).name == "torch"
    assert engine_name("auto", ModelConfig.model_validate(KEYS), "cuda")[0] == "torch"


@pytest.mark.skipif(library() is None, reason="no native library")
def test_nothing_else_built_in_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(coverage, "instruction_set", lambda: coverage.BFLOAT16[0])
    relations = [{"name": name, "lhs": "e", "rhs": "e", "operator": name} for name in OPERATORS.built_in]
    for changes in (
        {"relations": relations},
        {"bias": True, "max_norm": 1.0},
        {"precision": "bf16"},
        *({"comparator": name} for name in COMPARATORS.built_in),
        *({"loss_fn": name} for name in LOSSES.built_in),
        *({"regularizer": name, "regularization_coef": 1e-3} for name in REGULARIZERS.built_in),
    ):
        assert engine_name("auto", ModelConfig.model_validate(KEYS | changes)) == ("native", "")
