"""Servers of sinks that get no request."""

from __future__ import annotations

import socket

import pytest

from pbg_tasks.errors import AccessError, ConfigError, StorageError
from pbg_tasks.publish.sinks import open_sink, sink_options
from pbg_tasks.publish.sinks.registry import client_errors


@pytest.fixture
def resolved(monkeypatch):
    """Return a list of addresses that every name has."""
    addresses = []

    def answer(*_, **__):
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in addresses]

    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return addresses


def open_web(sink, place):
    with open_sink(sink, place, sink_options(sink, {})):
        pass


@pytest.mark.parametrize("sink", ["milvus", "qdrant"])
def test_unencrypted_far_host_gets_no_key(sink, resolved):
    resolved.append("93.184.216.34")
    with pytest.raises(ConfigError, match=rf"sink {sink}: http://vectors\.example:6333 is not encrypted and not on"):
        open_web(sink, "http://vectors.example:6333")


@pytest.mark.parametrize("sink", ["milvus", "qdrant"])
def test_metadata_service_by_name_gets_no_request(sink, resolved):
    resolved.append("169.254.169.254")
    refused = rf"sink {sink}: https://vectors\.example is a link-local address or a metad.*; name the server itself$"
    with pytest.raises(ConfigError, match=refused):
        open_web(sink, "https://vectors.example")


@pytest.mark.parametrize("sink", ["milvus", "qdrant"])
@pytest.mark.usefixtures("resolved")
def test_unknown_host_is_a_storage_error(sink):
    with pytest.raises(StorageError, match="Name or service not known"):
        open_web(sink, "https://vectors.example")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("auth check failure, please check api key is correct", AccessError),
        ("PrivilegeLoad: permission deny to ann in the `default` database", AccessError),
        ("status = StatusCode.UNAUTHENTICATED", AccessError),
        ("Fail connecting to server on auth:19530, illegal connection params or server unavailable", StorageError),
        ("Fail connecting to server on milvus.auth.svc:19530, illegal connection params", StorageError),
        ("collection 'shop_production_author_0' does not exist", StorageError),
    ],
)
def test_names_are_no_refusals_of_milvus(reason, kind, resolved, monkeypatch):
    def failing(**_):
        raise RuntimeError(reason)

    resolved.append("93.184.216.34")
    monkeypatch.setattr("pymilvus.MilvusClient", failing)
    with pytest.raises(StorageError) as raised:
        open_web("milvus", "https://vectors.example")
    assert raised.type is kind


def test_lack_of_memory_is_no_servers_fault():
    failing = client_errors("Qdrant", "https://vectors.example", "QDRANT_API_KEY", lambda _: True)
    with pytest.raises(MemoryError, match="malloc"), failing:
        raise MemoryError("malloc")
