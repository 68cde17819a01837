"""Releases that a training starts from."""

from __future__ import annotations

from pbg_tasks.checkpoint import checkpoint_names, open_directory
from pbg_tasks.storage import open_store
from pbg_tasks.training.data.partitions import partition_keys
from tests.training.buckets import ROWS
from tests.training.checkpoints import model_state, write_checkpoint

KNOWN = ROWS - 3

SHARED = ("relations/0/operator/rhs/translation", "entities/n/global_embedding")


def release(directory, config):
    """Make a release without three rows of each partition."""
    keys = dict.fromkeys(partition_keys(config), KNOWN)
    write_checkpoint(directory, config, keys, model=model_state(0.1, *SHARED, shape=(4,)))
    return open_directory(open_store(directory), "", expect=checkpoint_names(config))
