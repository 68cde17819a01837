"""Ranks that crash, and the ledger of a gang."""

from __future__ import annotations

from pbg_tasks.checkpoint import open_committed
from pbg_tasks.storage.local import LocalStore
from tests.training.ranks.gangs import train


class Crash(BaseException):
    """End of a rank as by SIGKILL: no clean-up happens."""


def ledger(store):
    manifest, _ = open_committed(store, "")
    return manifest.edges, manifest.retrained


def ledger_of_whole(config, buckets, tmp_path):
    """Edges of a training that nothing disturbs."""
    store = LocalStore(tmp_path / "whole")
    train(config, buckets, store, tmp_path / "c")
    return ledger(store)[0]
