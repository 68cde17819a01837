"""Thirty steps of PBG and of this package without randomness.

Both start from one checkpoint. With one chunk that holds all edges of the bucket, and no negatives but these edges, the
order in which PBG shuffles them matters for rounding only. Whatever would amplify rounding is avoided, since otherwise
two runs of PBG that differ in nothing but their shuffling drift apart by 1e-3: steps are small; Adagrad's sums begin at
1, since with small ones it divides a gradient of zero by its own rounding; and there is no ranking loss, whose gradient
jumps.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from pbg_tasks.config import ConfigSchema
from pbg_tasks.formats.directory import checkpoint_version_bytes
from pbg_tasks.formats.embeddings import IterationInfo, embeddings_file_name, write_embeddings
from pbg_tasks.formats.model import ModelState, model_file_name, write_model
from pbg_tasks.tasks.training.train import train_directory
from pbg_tasks.training.data.parameters import SharedParameters
from tests.interop.checkpoints import difference, snapshot
from tests.interop.graphs import DYNAMIC_RELATIONS, IN_ONE_CHUNK, ROWS, write_graph
from tests.rotation import of_today

pytestmark = pytest.mark.interop

STEPS = 30
TOLERANCE = 1e-5
ENTITIES = {"user": (40,), "item": (30,)}


def one_batch(row, root):
    """Return the row's config with one bucket.

    It has one relation unless relations may share a batch.
    """
    document = row.document(root) | IN_ONE_CHUNK
    document |= {"loss_fn": ("softmax", "logistic")[row.number % 2], "lr": 0.01, "relation_lr": 0.005}
    document |= {"num_edge_chunks": 1, "eval_fraction": 0.0, "num_epochs": 1 + STEPS}
    # With negatives on one side only, whatever all of them share (a translation, a global embedding) has no gradient.
    document["disable_lhs_negs"] = row.dynamic and document.get("disable_lhs_negs", False)
    document["entities"]["user"] = {"num_partitions": 1}
    document["relations"] = [relation | {"all_negs": False} for relation in document["relations"][:1]]
    return document


def write_checkpoint(config, seed=0):
    """Write version 1 of random vectors, parameters and sums."""
    rng = np.random.default_rng(seed)
    directory = Path(config.checkpoint_path)
    directory.mkdir()
    iteration = IterationInfo(config.num_epochs, 0, 1, 0, config.edge_paths[0], 1, 0)
    for entity, (count,) in ENTITIES.items():
        rows = rng.normal(scale=0.3, size=(count, config.dimension)).astype(np.float32)
        sums = rng.uniform(1, 2, count).astype(np.float32)
        path = directory / embeddings_file_name(entity, 0, 1)
        write_embeddings(path, rows, sums, lr=config.lr, iteration=iteration, config=config)
    identity, _ = SharedParameters(config, DYNAMIC_RELATIONS if config.dynamic_relations else 1).arrays()
    params = {
        name: value + rng.normal(scale=0.1, size=value.shape).astype(np.float32) for name, value in identity.items()
    }
    sums = {name: rng.uniform(1, 2, value.shape).astype(np.float32) for name, value in identity.items()}
    write_model(directory / model_file_name(1), ModelState(params, sums), config=config, iteration=iteration)
    (directory / "checkpoint_version.txt").write_bytes(checkpoint_version_bytes(1))


@pytest.mark.parametrize("row", of_today(ROWS, days=3), ids=str)
def test_thirty_steps_equal_those_of_pbg(row, tmp_path, oracle):
    document = one_batch(row, tmp_path)
    write_checkpoint(write_graph(document, ENTITIES))
    start = snapshot(ConfigSchema(**document))
    copy = document | {"checkpoint_path": str(tmp_path / "theirs")}
    shutil.copytree(document["checkpoint_path"], copy["checkpoint_path"])
    train_directory(ConfigSchema(**document))
    oracle.train(copy)
    mine, theirs = (snapshot(ConfigSchema(**each)) for each in (document, copy))
    assert mine.version == theirs.version == 1 + STEPS
    for name, expected in theirs.values.items():
        if name.startswith("embeddings_"):
            assert difference(start.values[name], expected) > 0.1, f"{name} hardly moved"
        assert difference(mine.values[name], expected) < TOLERANCE, name
        assert difference(mine.sums[name], theirs.sums[name]) < TOLERANCE, f"sums of {name}"
