"""One real stack for all tests of this folder.

An S3 server with a tiny graph, and an Airflow that embeds it.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from examples.stack.stack import Stack
from tests.metrics_backends import StatsdListener
from tests.operators.kubernetes.double import KubernetesDouble
from tests.operators.specs import small_spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from examples.stack.api import AirflowApi

BUCKET = "e2e"
GRAPH = "small"
CLUSTERED = "clustered"
"""A graph whose training is a Job of four ranks."""
NIGHTS = {"first": range(100), "second": range(4, 104)}
"""The entities of each night: the second lost four and got four."""


METRICS = """
[metrics]
statsd_on = True
statsd_host = 127.0.0.1
statsd_port = {port}
statsd_prefix = airflow
metrics_allow_list = pbg
"""
"""Settings of Airflow."""


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


def clustered_spec() -> dict[str, Any]:
    spec = small_spec(f"s3://{BUCKET}", CLUSTERED)
    spec["snapshots"]["location"] = (
        f"s3://{BUCKET}/{CLUSTERED}/{{snapshot}}/*.parquet"  # two assets must not share a location
    )
    spec["model"] |= {"entities": {"node": {"num_partitions": 8}}, "num_epochs": 1, "dimension": 8}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    image = f"registry.example/pbg-train@sha256:{'0' * 64}"
    kubernetes = {"image": image, "resources": {"cpu": "1", "memory": "2Gi"}, "port": port}
    tasks = {"partition": {}, "eval": {"deferrable": False}}
    return spec | {"launch": {"launcher": "kubernetes", "ranks": 4, "kubernetes": kubernetes, "tasks": tasks}}


@pytest.fixture(scope="session")
def cluster() -> Iterator[KubernetesDouble]:
    """A double of a cluster, whose pods are processes of this machine."""
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with KubernetesDouble(variables | {"OMP_NUM_THREADS": "1"}) as double:
        yield double


@pytest.fixture(scope="session")
def statsd() -> Iterator[StatsdListener]:
    """A receiver of Airflow's metrics."""
    with StatsdListener() as listener:
        yield listener


@pytest.fixture(scope="session")
def stack(
    tmp_path_factory: pytest.TempPathFactory, cluster: KubernetesDouble, statsd: StatsdListener
) -> Iterator[Stack]:
    """A running stack; all of it ends with the tests."""
    directory = tmp_path_factory.mktemp("stack")
    (directory / "airflow").mkdir()
    (directory / "airflow" / "airflow.cfg").write_text(METRICS.format(port=statsd.port))
    graphs = directory / "graphs"
    graphs.mkdir()
    (graphs / "small.yaml").write_text(yaml.safe_dump(small_spec(f"s3://{BUCKET}", GRAPH)))
    (graphs / "clustered.yaml").write_text(yaml.safe_dump(clustered_spec()))
    dags = directory / "dags"
    shutil.copytree(Path(__file__).resolve().parents[2] / "dags", dags, ignore=shutil.ignore_patterns("__pycache__"))
    stack = Stack(directory, graphs=graphs, settings={"AIRFLOW__CORE__DAGS_FOLDER": str(dags)})
    kubeconfig = cluster.write_kubeconfig(directory / "kubeconfig")
    try:
        stack.start_store(BUCKET)
        client = stack.store.client()
        for night, entities in NIGHTS.items():
            for folder in ("snapshots", CLUSTERED):
                client.put_object(Bucket=BUCKET, Key=f"{folder}/{night}/edges.parquet", Body=edges(entities))
        client.close()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(kubeconfig))  # Airflow's place to look without a connection
            stack.start_airflow(print)
        yield stack
    finally:
        stack.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def api(stack: Stack) -> AirflowApi:
    """Airflow's API with the DAGs read; event-driven ones are not paused."""
    api = stack.airflow().api
    deadline = time.monotonic() + 60
    while not {f"reembed_{GRAPH}", f"reembed_{CLUSTERED}"} <= set(api.dag_ids()):
        assert time.monotonic() < deadline, api.import_errors()
        time.sleep(0.5)
    return api
