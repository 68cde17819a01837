"""An S3 store behind a proxy that loses, breaks off and refuses."""

from __future__ import annotations

import time

import pytest

from pbg_tasks.storage import open_store
from tests.storage.fault_proxy import FaultProxy


@pytest.fixture
def proxy(object_store):
    with FaultProxy(object_store.endpoint) as running:
        yield running


@pytest.fixture
def behind(s3_bucket, proxy, monkeypatch):
    """The store as ``store`` has it, seen through the proxy."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    return open_store(s3_bucket)


@pytest.fixture
def unhurried(monkeypatch):
    """Nobody waits, neither the SDK nor we; the list is of the seconds it would have taken."""
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept
