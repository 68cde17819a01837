"""Memory that a training gives back when it ends."""

from __future__ import annotations

import gc
import weakref

from pbg_tasks.storage.local import LocalStore
from tests.training.buckets import make_config, train


class Seen:
    """Anchor that remembers embeddings without keeping them."""

    def __init__(self):
        self.embeddings = []

    def draw(self, _key, table, _iteration):
        self.embeddings.append(weakref.ref(table.embeddings))


def test_embeddings_are_freed_without_a_collection(buckets, tmp_path):
    """The command seldom collects cycles, and its next task needs the memory."""
    seen = Seen()
    gc.disable()
    try:
        train(make_config(), buckets, LocalStore(tmp_path / "store"), tmp_path / "scratch", anchor=seen)
        assert seen.embeddings
        assert not any(each() is not None for each in seen.embeddings)
    finally:
        gc.enable()
