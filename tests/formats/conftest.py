"""A small config, and where in a training a file stands."""

from __future__ import annotations

import pytest

from pbg_tasks.config import ConfigSchema
from pbg_tasks.formats.metadata import IterationInfo


@pytest.fixture(scope="session")
def config() -> ConfigSchema:
    return ConfigSchema(
        entities={"user": {"num_partitions": 2}, "item": {"num_partitions": 1}},
        relations=[
            {"name": "likes", "lhs": "user", "rhs": "item", "operator": "complex_diagonal"},
            {"name": "knows", "lhs": "user", "rhs": "user", "operator": "affine"},
        ],
        dimension=4,
        entity_path="entities",
        edge_paths=("edges",),
        checkpoint_path="model",
        lr=0.1,
        relation_lr=0.01,
    )


@pytest.fixture(scope="session")
def iteration() -> IterationInfo:
    return IterationInfo(
        num_epochs=5,
        epoch_idx=2,
        num_edge_paths=1,
        edge_path_idx=0,
        edge_path="edges",
        num_edge_chunks=3,
        edge_chunk_idx=1,
    )
