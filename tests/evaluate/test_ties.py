from __future__ import annotations

import numpy as np
import pytest

from pbg_tasks.evaluate.ties import ROUNDING, tie_from
from tests.evaluate.graphs import Graph, make_config
from tests.model.configs import one_type


@pytest.mark.parametrize("score", [-100.0, 0.0, 100.0])
@pytest.mark.parametrize("bias", [False, True])
def test_unknown_comparator_ties_within_rounding(score, bias):
    config = one_type(dimension=3).model_copy(update={"comparator": "of_a_package", "bias": bias})
    query, true = np.array([[0.5, 3.0, 4.0]]), np.array([[0.25, 1.0, 0.0]])
    apart = score - float(tie_from(config, query, true, np.array([score]))[0])
    assert 4 * ROUNDING < apart < 120 * ROUNDING


@pytest.mark.parametrize("comparator", ["dot", "l2", "squared_l2"])
@pytest.mark.parametrize(("apart", "rank"), [(0.0, 2), (1e-6, 1)])
def test_scores_within_rounding_are_compared_exactly(tmp_path, comparator, apart, rank):
    graph = Graph(make_config(operator="none", comparator=comparator), users=300, items=300)
    for value in graph.params.values():
        value[:] = 0
    edge = graph.triples[graph.triples[:, 1] == 0][:1]  # a user likes an item
    (lhs, _, rhs), users, items = edge[0], graph.embeddings["user"], graph.embeddings["item"]
    users[lhs] = 1
    items[:], users[np.arange(300) != lhs] = -1, -1
    items[rhs] = 1 if comparator == "dot" else 0.9
    twin = (rhs + 1) % 300
    items[twin] = items[rhs] * np.float32(1 - apart)
    report, _ = graph.evaluate(tmp_path, edge)
    assert report.sides["rhs"]["raw"]["mr"] == rank
