"""A plain directory trained with classes of another package.

Operator, comparator, loss and regularizer; it is evaluated, too.
"""

from __future__ import annotations

import numpy as np
import pytest

from pbg_tasks.config import ConfigSchema
from pbg_tasks.formats.edges import EdgeList, write_edges
from pbg_tasks.tasks.directory.evaluate import evaluate_directory
from pbg_tasks.tasks.training.train import train_directory
from tests.model.plugins import documented, package_folder

ENTITIES, REPEATS = 40, 10


@pytest.fixture
def rotations(tmp_path):
    with package_folder(tmp_path / "site") as write:
        write(*documented())
        yield


@pytest.mark.usefixtures("rotations")
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("dynamic", [False, True])
def test_documented_example_learns_a_ring(tmp_path, dynamic, workers):
    entities, edges = tmp_path / "entities", tmp_path / "edges"
    entities.mkdir()
    edges.mkdir()
    (entities / "entity_count_e_0.txt").write_text(str(ENTITIES))
    (entities / "dynamic_rel_count.txt").write_text("2")
    ids = np.arange(ENTITIES)
    forward = EdgeList(ids, (ids + 1) % ENTITIES, np.zeros(ENTITIES, np.int64))
    back = EdgeList(forward.rhs, forward.lhs, np.full(ENTITIES, int(dynamic)))
    both = (np.concatenate(column) for column in zip(*((e.lhs, e.rhs, e.rel) for e in (forward, back)), strict=True))
    write_edges(edges / "edges_0_0.h5", EdgeList(*(np.tile(column, REPEATS) for column in both)))
    config = ConfigSchema.model_validate(
        {
            "entities": {"e": {"num_partitions": 1}},
            "relations": [{"name": "next", "lhs": "e", "rhs": "e", "operator": "rotation"}],
            "dimension": 16,
            "comparator": "manhattan",
            "loss_fn": "squared_hinge",
            "margin": 1.0,
            "regularizer": "lasso",
            "regularization_coef": 1e-4,
            "lr": 0.1,
            "num_epochs": 6,
            "workers": workers,
            "batch_size": 20,
            "num_batch_negs": 10,
            "num_uniform_negs": 20,
            "eval_fraction": 0.0,
            "dynamic_relations": dynamic,
            "global_emb": False,
            "entity_path": str(entities),
            "edge_paths": [str(edges)],
            "checkpoint_path": str(tmp_path / "model"),
        }
    )
    trained = train_directory(config, seed=0)
    assert trained["curve"][-1] < trained["curve"][0] / 2
    figures = evaluate_directory(config, seed=0)
    assert figures["raw"]["mrr"] > 2 * figures["random"]["mrr"]
