from __future__ import annotations

import pytest

from pbg_tasks.storage import LocalStore
from pbg_tasks.storage.metered import MeteredStore
from tests.contract.store import StoreContract, large_file

__all__ = ["large_file"]


class TestMeteredStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        return MeteredStore(LocalStore(tmp_path / "store"))


def test_bytes_through_store_are_counted(tmp_path):
    store = MeteredStore(LocalStore(tmp_path / "store"))
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    info = store.put_new("a", b"x" * 3)
    store.swap("a", b"x" * 5, expected=info)
    store.put("b", file)
    assert (store.read, store.written) == (0, 108)
    store.copy("b", "c")
    store.head("b")
    assert (store.read, store.written) == (0, 108)
    assert len(store.get("a").data) == 5
    store.fetch("c", tmp_path / "copy")
    assert (store.read, store.written) == (105, 108)
