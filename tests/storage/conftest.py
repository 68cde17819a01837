"""An S3 store behind a proxy that loses, cuts and refuses answers."""

from __future__ import annotations

import time

import pytest

from pbg_tasks.storage import open_store
from tests.storage.fault_proxy import FaultProxy


@pytest.fixture
def store(s3_bucket):
    """An empty store in the S3 server."""
    return open_store(s3_bucket)


@pytest.fixture
def proxy(object_store):
    with FaultProxy(object_store.endpoint) as running:
        yield running


@pytest.fixture
def behind(s3_bucket, proxy, monkeypatch):
    """The store of the fixture ``store``, seen through the proxy."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    return open_store(s3_bucket)


@pytest.fixture
def unhurried(monkeypatch):
    """Skip the waiting of SDK and store; list the seconds skipped."""
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept
