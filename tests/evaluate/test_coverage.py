from __future__ import annotations

import numpy as np

from pbg_tasks.evaluate.coverage import Coverage
from pbg_tasks.evaluate.ids import Numbering
from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.model.families import Families
from tests.evaluate.graphs import make_config


def test_new_entity_needs_edge_and_move_for_coverage():
    config = make_config(partitions=2)
    families = Families(config, 2)
    numbering = Numbering(config, {"user": [3, 2], "item": [2]}, families)
    new = {"user": np.array([False, True, True, True, True]), "item": np.array([False, False])}
    moved = {"user": np.array([True, True, True, False, True]), "item": np.array([True, True])}
    coverage = Coverage(config, numbering, families, new, moved)
    # users 1 and 3 (offset 0 of partition 1) have edges; 2 only moved as a negative, 4 likewise
    coverage.add((0, 1), EdgeList(np.array([1]), np.array([0]), np.array([1])))
    coverage.add((0, 0), EdgeList(np.array([0]), np.array([1]), np.array([0])))
    assert coverage.to_json() == {
        "user": {"new": 4, "trained": 2, "moved": 3, "covered": 1},
        "item": {"new": 0, "trained": 0, "moved": 0, "covered": 0},
    }
