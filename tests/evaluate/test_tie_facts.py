"""Rounding of ties by the facts that a package's comparator states."""

from __future__ import annotations

import pytest
import torch

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
        query_ND, true_ND = torch.eye(2, 4), torch.full((2, 4), 3.0)
        score_N = -(query_ND - true_ND).norm(dim=1)
        found = {
            name: tie_from(config(name), query_ND, true_ND, score_N, exact=exact) for name in ("l2", "stated", "silent")
        }
        assert torch.equal(found["stated"], found["l2"])
        assert not torch.equal(found["silent"], found["l2"])
