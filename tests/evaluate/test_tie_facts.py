"""Rounding of ties by the facts that a package's comparator states."""

from __future__ import annotations

import numpy as np
import pytest

from pbg_tasks.config import ConfigSchema
from pbg_tasks.evaluate.ties import tie_from
from tests.model.plugins import package_folder

SOURCE = """
import torch

from pbg_tasks.config.comparators import Facts
from pbg_tasks.model.comparators import Comparator


class Silent(Comparator):
    def all_pairs(self, query_CSD, candidate_CKD):
        return -torch.cdist(query_CSD, candidate_CKD)


class Stated(Silent):
    facts = Facts("l2")
"""


def config(name):
    return ConfigSchema.model_validate(
        {
            "entities": {"e": {"num_partitions": 1}},
            "relations": [{"name": "r", "lhs": "e", "rhs": "e"}],
            "dimension": 4,
            "comparator": name,
            "entity_path": "e",
            "edge_paths": ["d"],
            "checkpoint_path": "m",
        }
    )


@pytest.mark.parametrize("exact", [False, True])
def test_stated_metric_rounds_as_built_in(tmp_path, exact):
    with package_folder(tmp_path) as write:
        write("ours", SOURCE, {"pbg_tasks.comparators": {"silent": "ours:Silent", "stated": "ours:Stated"}})
        query_ND, true_ND = np.eye(2, 4, dtype=np.float32), np.full((2, 4), 3, np.float32)
        score_N = -np.linalg.norm(query_ND - true_ND, axis=1)
        found = {
            name: tie_from(config(name), query_ND, true_ND, score_N, exact=exact) for name in ("l2", "stated", "silent")
        }
        assert np.array_equal(found["stated"], found["l2"])
        assert not np.array_equal(found["silent"], found["l2"])
