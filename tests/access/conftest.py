"""A real S3 server that enforces the policies of docker/policies."""

from __future__ import annotations

import pytest

from examples.stack.object_store import ObjectStore
from tests.access.chain import Chain, nights, write_snapshots
from tests.access.policies import BUCKET, ROLES, SNAPSHOT_BUCKET, joined, load
from tests.access.recording import RecordingProxy
from tests.tasks.conftest import workplace

OPERATOR = ("prepare", "train", "publish")
"""The roles for doing all of a night at once: an Airflow worker, `pbg run`, `pbg adopt`, `pbg repartition`."""


@pytest.fixture(scope="session")
def limited_store(tmp_path_factory):
    policies = {role: load(role) for role in ROLES} | {"operator": joined(*OPERATOR)}
    with ObjectStore(tmp_path_factory.mktemp("access"), policies=policies) as server:
        for bucket in {BUCKET, SNAPSHOT_BUCKET}:
            server.create_bucket(bucket)
        yield server


@pytest.fixture(scope="session")
def chain(limited_store, tmp_path_factory):
    """A graph before its first night."""
    with workplace(tmp_path_factory.mktemp("graph")) as place, RecordingProxy(limited_store.endpoint) as proxy:
        made = Chain(limited_store, proxy, place)
        write_snapshots(made, place.root)
        yield made


@pytest.fixture(scope="session")
def recorded(chain):
    """The graph after all tasks ran, each under its own role."""
    nights(chain)
    return chain
