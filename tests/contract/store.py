"""Additions to the contract of stores.

They need what only the tests here have: documents of runs and a small disk.
"""

from __future__ import annotations

import os

import pytest

from pbg_tasks.checkpoint.manifest import Head, encode_unique
from pbg_tasks.errors import ConflictError, ResourceError
from pbg_tasks.storage import contract
from pbg_tasks.storage.contract import LARGE, large_file, sha256

__all__ = ["LARGE", "StoreContract", "large_file", "sha256"]


class StoreContract(contract.StoreContract):
    def test_equal_documents_have_different_tags(self, store):
        document = Head(writer_epoch=1)
        first = store.put_new("HEAD", encode_unique(document))
        second = store.swap("HEAD", encode_unique(document.model_copy(update={"version": 1})), expected=first)
        third = store.swap("HEAD", encode_unique(document), expected=second)
        assert len({first.tag, second.tag, third.tag}) == 3
        with pytest.raises(ConflictError, match="HEAD"):
            store.swap("HEAD", b"{}", expected=first)
        assert store.head("HEAD").tag == third.tag

    def test_a_full_disk_under_a_download(self, store, large_file, small_disk):
        store.put_new("large", large_file)
        with pytest.raises(ResourceError, match=os.fspath(small_disk)):
            store.fetch("large", small_disk / "large")
        assert list(small_disk.iterdir()) == []
