"""Files and mirrors on their way to the store."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from pbg_tasks.checkpoint.live import FILE_NAME as LIVE
from pbg_tasks.errors import ResourceError, StorageError
from pbg_tasks.storage.local import LocalStore
from pbg_tasks.training.data.uploads import Uploads


class Store(LocalStore):
    """Store that keeps all objects; the first puts fail with ``failing``."""

    def __init__(self, root, failing=()):
        super().__init__(root)
        self.puts, self._failing = [], list(failing)

    def put(self, key, data, **options):
        self.puts.append((key, data))
        if self._failing:
            raise self._failing.pop()
        return super().put(key, data, **options)


def writer(store, hold):
    """Checkpoint writer whose uploads take until ``hold`` is set."""
    return SimpleNamespace(store=store, prefix="run", put=lambda name, _file: hold.wait() and name)


def test_newest_mirror_behind_slow_upload_is_stored(tmp_path):
    store, hold = Store(tmp_path), threading.Event()
    uploads = Uploads(writer(store, hold))
    with uploads.io:
        uploads.add(tmp_path / "model.v1.h5")
        for number in range(50):
            uploads.mirror(b"%d" % number)
        hold.set()
        assert uploads.collect() == {"model.v1.h5": "model.v1.h5"}
        uploads.io.drain()
    assert store.puts == [(f"run/{LIVE}", b"49")]


@pytest.mark.parametrize("failing", [(), (StorageError("503"),), (ResourceError("the disk is full"),)])
def test_successive_mirrors_are_all_stored(tmp_path, failing):
    """They are stored even after one that failed."""
    store, hold = Store(tmp_path, failing), threading.Event()
    uploads = Uploads(writer(store, hold))
    with uploads.io:
        for data in (b"first", b"second"):
            uploads.mirror(data)
            uploads.io.drain()
    assert [data for _, data in store.puts] == [b"first", b"second"]
    assert store.get(f"run/{LIVE}").data == b"second"
