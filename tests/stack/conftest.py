"""One real stack for all tests of this folder: an S3 server with a tiny graph, and an Airflow that embeds it."""

from __future__ import annotations

import io
import shutil
import time
from typing import TYPE_CHECKING

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from examples.stack.stack import Stack
from tests.operators.specs import small_spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from examples.stack.api import AirflowApi

BUCKET = "e2e"
GRAPH = "small"
NIGHTS = {"first": range(100), "second": range(4, 104)}
"""Which entities each night has: the second lost four and got four."""


def edges(entities: range) -> bytes:
    """Return a ring with chords, 600 edges, as a Parquet file."""
    names = [f"node{number}" for number in entities]
    ring = [(names[at], names[(at + step) % len(names)]) for at in range(len(names)) for step in (1, 2, 3)]
    chords = [(names[at], names[(7 * at + step) % len(names)]) for at in range(len(names)) for step in (11, 23, 42)]
    both = sorted({(a, b) for a, b in ring + chords if a != b})
    columns = {"lhs": [a for a, _ in both], "rel": ["likes"] * len(both), "rhs": [b for _, b in both]}
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running stack; everything of it ends with the tests."""
    directory = tmp_path_factory.mktemp("stack")
    graphs = directory / "graphs"
    graphs.mkdir()
    (graphs / "small.yaml").write_text(yaml.safe_dump(small_spec(f"s3://{BUCKET}", GRAPH)))
    stack = Stack(directory, graphs=graphs)
    try:
        environment = stack.start_store(BUCKET)
        client = boto3.client(
            "s3",
            endpoint_url=environment["AWS_ENDPOINT_URL"],
            aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
            region_name=environment["AWS_REGION"],
        )
        for night, entities in NIGHTS.items():
            client.put_object(Bucket=BUCKET, Key=f"snapshots/{night}/edges.parquet", Body=edges(entities))
        client.close()
        stack.start_airflow(print)
        yield stack
    finally:
        stack.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def api(stack: Stack) -> AirflowApi:
    """Airflow's API, with the DAG read and unpaused."""
    api = stack.airflow().api
    deadline = time.monotonic() + 60
    while f"reembed_{GRAPH}" not in api.dag_ids():
        assert time.monotonic() < deadline, api.import_errors()
        time.sleep(0.5)
    api.unpause(f"reembed_{GRAPH}")
    return api
