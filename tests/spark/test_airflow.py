"""Tasks of Airflow with commands on Spark, by ``launch.prepare``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from pbg_tasks.tasks.context import RunContext
from tests.operators.conftest import TaskInstance
from tests.prepare.random_graphs import RandomGraph
from tests.spark.servers import connect_server
from tests.two_engines import settings

pytestmark = [pytest.mark.timeout(1800), pytest.mark.rotated(3)]  # each starts applications, for half a minute
SEED = 39
TASKS = ("validate", "partition", "bucket")


@pytest.fixture
def night(spark, s3_bucket, tmp_path, monkeypatch):
    """Plan a night, in which one task does all of the preparation."""
    from pbg_tasks.tasks.nightly.plan import plan

    monkeypatch.setattr("pbg_tasks.prepare.spark.lacking", lambda: ["a session of this process"])  # DuckDB counts
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    graph = RandomGraph(tmp_path / "graph", 300, SEED, plain=True)
    key = graph.write(0)

    def planned(launch, **keys):
        document = {**graph.document, "store": s3_bucket, "launch": launch, "airflow": {"few_tasks": True}, **keys}
        document["resources"] = {**graph.document["resources"], "engine": "spark"}
        path = tmp_path / "g.yaml"
        path.write_text(yaml.safe_dump(document))
        return path, plan(path, key)["run"]

    return planned


@pytest.fixture
def submits(monkeypatch, tmp_path):
    """Name a master by a connection, as the provider takes it."""
    pytest.importorskip("airflow.providers.apache.spark", reason="make test-spark runs this, with the provider")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")

    def named(*, cluster):
        found = dict(settings(cluster=cluster))
        master = found.pop("spark.master")
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_TEST", json.dumps({"conn_type": "spark", "host": master}))
        (tmp_path / "spark.conf").write_text("".join(f"{key} {value}\n" for key, value in found.items()))
        submit = {"connection": "spark_test", "properties_file": str(tmp_path / "spark.conf")}
        return {"prepare": "spark_submit", "spark_submit": submit}

    return named


def task_of(path, name, run):
    """Return a task of the night's DAG, with its run rendered."""
    from pbg_operators.reembed import build_dags_of

    dag = next(dag for dag in build_dags_of(path) if dag.dag_id == "reembed_g")
    task = dag.get_task(f"prepare.{name}")
    task.arguments, task.store_conn_id = [run], None
    return task


def executed(task):
    ti = TaskInstance()
    ti.task_id, ti.map_index = task.task_id, -1
    return task.execute({"ti": ti, "params": {}, "dag_run": SimpleNamespace(partition_key=None)})


def test_submitted_preparation_has_results_of_store(night, submits):
    path, run = night(submits(cluster=True))
    result = executed(task_of(path, "prepare", run))
    stored = RunContext.open(run)
    assert {name: stored.require(name) for name in TASKS} == {name: result["tasks"][name] for name in TASKS}
    assert result["tasks"]["bucket"]["edges"]["total"] > 0


def test_refusal_of_submitted_command_is_one(night, submits):
    from pbg_operators.task import Refused

    path, run = night(submits(cluster=False), gates={"data": {"min_edges": {"block": 1000}}})
    with pytest.raises(Refused, match=r"quality_gate: pbg prepare: .*300"):
        executed(task_of(path, "prepare", run))


def test_command_in_session_has_result_of_store(night, monkeypatch, tmp_path):
    launch = {"prepare": "spark_connect", "spark_connect": {"connection": "connect_test"}}
    path, run = night(launch, airflow={})
    # The task learns of the server by its connection alone. What this removes is there again before the server ends,
    # which leaves the environment as it was for the tests that follow.
    server = connect_server(settings(cluster=True), tmp_path / "server.log")
    with server as (address, token), monkeypatch.context() as own:
        own.delenv("SPARK_REMOTE")
        own.delenv("SPARK_CONNECT_AUTHENTICATE_TOKEN")
        host, _, port = address.removeprefix("sc://").partition(":")
        connection = {"conn_type": "spark_connect", "host": host, "port": int(port), "password": token}
        own.setenv("AIRFLOW_CONN_CONNECT_TEST", json.dumps(connection))
        result = executed(task_of(path, "validate", run))
    assert "SPARK_REMOTE" not in os.environ
    assert RunContext.open(run).require("validate") == result
