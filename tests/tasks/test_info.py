from __future__ import annotations

import json

import pytest

from pbg_tasks.native import instruction_set, library
from pbg_tasks.native.coverage import LEFT_TO_TORCH
from pbg_tasks.tasks.info import info


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    keys = {
        "entities": {"e": {"num_partitions": 1}},
        "relations": [{"name": "r", "lhs": "e", "rhs": "e"}],
        "dimension": 8,
        "entity_path": str(tmp_path),
        "edge_paths": [str(tmp_path)],
        "checkpoint_path": str(tmp_path),
    }
    path.write_text(json.dumps(keys))
    return str(path)


def test_it_tells_what_is_installed():
    found = info()
    assert found["left_to_torch"] == list(LEFT_TO_TORCH)
    assert ("native" in found["engines"]) == (library() is not None)
    assert found["native"] == instruction_set() or "not built" in found["native"]
    assert "torch" in found["packages"]


@pytest.mark.skipif(library() is None, reason="no native library")
def test_it_tells_which_engine_trains_a_config_and_why(config):
    assert info(config)["engine"] == "native"
    left = info(config, ["mask_known_negatives=true"])
    assert left["engine"] == "torch"
    assert "mask_known_negatives: true" in left["because"]
