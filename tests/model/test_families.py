"""Relations that may share a batch."""

from __future__ import annotations

import pytest

from pbg_tasks.config import ModelConfig
from pbg_tasks.model.families import Families


@pytest.mark.parametrize(
    ("keys", "alike"),
    [
        ({}, [0, 0]),
        ({"weight": 2.0}, [0, 1]),
        ({"lhs_weight": 2.0}, [0, 1]),
        ({"rhs_weight": 0.5}, [0, 1]),
        ({"all_negs": True}, [0, 1]),
        ({"weight": 0.5, "lhs_weight": 2.0, "rhs_weight": 2.0}, [0, 0]),
    ],
)
def test_relations_of_equal_weights_share_batches(keys, alike):
    config = ModelConfig.model_validate(
        {
            "entities": {"a": {"num_partitions": 1}},
            "relations": [{"name": "r", "lhs": "a", "rhs": "a"}, {"name": "s", "lhs": "a", "rhs": "a"} | keys],
            "dimension": 4,
            "dynamic_relations": True,
            "global_emb": False,
        }
    )
    assert Families(config, 0).alike.tolist() == alike
