"""Retries against a busy S3 server, for longer than the SDK's own."""

from __future__ import annotations

import pytest

from pbg_tasks.errors import StorageError
from pbg_tasks.storage.s3 import S3Store
from pbg_tasks.storage.s3_client import connect
from pbg_tasks.storage.s3_transfer import Sizes
from tests.contract.store import large_file
from tests.storage.fault_proxy import SDK_ATTEMPTS, Fault

__all__ = ["large_file"]
pytestmark = pytest.mark.s3


READS = {
    "head": ("HEAD", lambda store, _: store.head("k").size),
    "get": ("GET", lambda store, _: len(store.get("k").data)),
    "fetch": ("GET", lambda store, path: store.fetch("k", path / "k").size),
    "list": ("GET", lambda store, _: next(store.list("k")).size),
}
"""For each method of the store the HTTP method it sends, and a call that returns the size of the object ``k``."""


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("read", READS)
def test_busy_server_is_retried_longer_than_by_sdk(proxy, behind, store, tmp_path, unhurried, read, status):
    store.put_new("k", b"x" * 1000)
    method, size = READS[read]
    requests = 1 if status == 429 else SDK_ATTEMPTS  # the SDK does not treat 429 as busy
    proxy.faults = [Fault(method, times=5 * requests, status=status, forward=False)]
    assert size(behind, tmp_path) == 1000
    assert proxy.faults[0].times == 0
    assert 0 < sum(unhurried) < 30


def test_busy_server_gets_one_part_again(proxy, behind, store, large_file, unhurried):
    begun = []
    behind._client.meta.events.register("before-call.s3.CreateMultipartUpload", lambda **_: begun.append(1))
    proxy.faults = [Fault("PUT", "partNumber=2", times=5 * SDK_ATTEMPTS, status=503, forward=False)]
    info = behind.put_new("k", large_file)
    assert len(begun) == 1
    assert proxy.faults[0].times == 0
    assert store.head("k") == info


def test_delete_from_busy_server_succeeds(proxy, behind, store, unhurried):
    store.put_new("k", b"x")
    proxy.faults = [Fault("DELETE", "/k", times=SDK_ATTEMPTS + 1, status=503, forward=False)]
    behind.delete("k")
    assert store.head("k") is None


def test_each_page_of_listing_is_retried(proxy, behind, store, unhurried):
    for number in range(5):
        store.put_new(f"k{number}", b"x")
    events = behind._client.meta.events
    events.register("provide-client-params.s3.ListObjectsV2", lambda params, **_: {**params, "MaxKeys": 2})
    proxy.faults = [
        Fault("GET", "list-type", times=5 * SDK_ATTEMPTS, status=503, forward=False),
        Fault("GET", "continuation-token", times=5 * SDK_ATTEMPTS, forward=False),
    ]
    assert [info.key for info in behind.list("k")] == [f"k{number}" for number in range(5)]
    assert proxy.count("GET") == 3 + 10 * SDK_ATTEMPTS


def test_equal_bytes_are_recognized_on_busy_server(proxy, behind, store, large_file, unhurried):
    store.put_new("a", large_file)
    S3Store(*behind.url.removeprefix("s3://").split("/"), connect(), Sizes(part=8 << 20)).put_new("b", large_file)
    proxy.faults = [Fault("GET", "/b", times=SDK_ATTEMPTS + 1, status=503, forward=False)]
    assert behind.copy("a", "b").key == "b"


@pytest.mark.parametrize("read", READS)
def test_server_that_stays_busy_raises(proxy, behind, store, tmp_path, unhurried, read):
    store.put_new("k", b"x" * 1000)
    method, size = READS[read]
    proxy.faults = [Fault(method, times=99, status=503, forward=False)]
    with pytest.raises(StorageError, match="503") as caught:
        size(behind, tmp_path)
    assert caught.value.retryable
    assert proxy.count(method) == 6 * SDK_ATTEMPTS
    assert sum(unhurried) < 30
