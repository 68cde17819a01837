"""Places of a batch's rows in the native engine.

They are in a hash table where the entities are many.
"""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.native import NativeEngine
from tests.model.configs import one_type
from tests.training.native_steps import native

pytestmark = native

DIMENSION, DISTINCT, EDGES = 12, 200, 300


def config(workers=1, **keys):
    settings = {"dimension": DIMENSION, "batch_size": EDGES, "num_uniform_negs": 0, "global_emb": False}
    return one_type(**settings | {"workers": workers} | keys)


def trained(rows, ids, count):
    """Return rows trained at these places of a table of ``count``."""
    random = np.random.default_rng(1)
    ends = (ids[random.integers(0, DISTINCT, EDGES)] for _ in range(2))
    table = Table(torch.zeros(count, DIMENSION), torch.zeros(count))
    table.embeddings[ids] = rows
    edges = EdgeList(*ends, np.zeros(EDGES, np.int64))
    NativeEngine(config(), 1).train_bucket(
        edges, {"e": table}, {"e": table}, generator=torch.Generator().manual_seed(0)
    )
    return table.embeddings[ids]


@pytest.mark.parametrize(
    "ids",
    [
        np.random.default_rng(0).permutation(300_000)[:DISTINCT],
        np.arange(DISTINCT) * 1024,
        np.arange(DISTINCT) + 99_000,
    ],
    ids=["anywhere", "at powers of two", "side by side"],
)
def test_rows_far_apart_train_as_neighbours(ids):
    rows = torch.randn(DISTINCT, DIMENSION, generator=torch.Generator().manual_seed(0))
    found = trained(rows, ids, 300_000)
    assert torch.equal(found, trained(rows, np.arange(DISTINCT), DISTINCT))
    assert not torch.equal(found, rows)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell the memory of a process")
def test_workers_keep_no_number_for_each_entity():
    entities, workers, batches = 4_000_000, 4, 8
    random = np.random.default_rng(0)
    table = Table(torch.ones(entities, 1), torch.ones(entities))
    engine = NativeEngine(config(workers, dimension=1), 1, workers=workers)
    ends = (random.integers(0, entities, batches * EDGES) for _ in range(2))
    edges = EdgeList(*ends, np.zeros(batches * EDGES, np.int64))
    before = resident()
    engine.train_bucket(edges, {"e": table}, {"e": table}, generator=torch.Generator().manual_seed(0))
    assert resident() - before < workers * entities


def resident():
    """Return the bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
