from __future__ import annotations

import os

import pytest

from pbg_tasks.prepare.spark import lacking


@pytest.fixture(scope="session")
def spark():
    """An environment with Spark and Java."""
    if found := lacking():
        pytest.skip(f"make test-spark runs this; missing here: {'; '.join(found)}")


@pytest.fixture(scope="session")
def cluster(object_store, spark):
    """Two executors with spark.authenticate, and the keys of the S3 server."""
    from tests.two_engines import session

    with pytest.MonkeyPatch.context() as patch:
        for name, value in object_store.environment().items():
            patch.setenv(name, value)
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        with session(cluster=True) as opened:
            yield opened
