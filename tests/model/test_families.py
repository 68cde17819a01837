"""Relations that may share a batch."""

from __future__ import annotations

import pytest

from pbg_tasks.model.families import Families
from tests.model.configs import one_type


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
    config = one_type({}, {"name": "s"} | keys, dynamic_relations=True)
    assert Families(config, 0).alike.tolist() == alike
