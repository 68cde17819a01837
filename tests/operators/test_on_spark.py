"""Commands on Spark: their places in DAGs, sessions, and ends of applications.

Applications themselves run in ``tests/spark`` and, beside a double of Kubernetes, in ``tests/operators/kubernetes``.
"""

from __future__ import annotations

import json
import re
import sys

import pytest
from airflow.sdk.exceptions import AirflowFailException

from pbg_operators.reembed import build_dags_of
from pbg_operators.spark import providers
from pbg_operators.spark.ending import error_of
from pbg_operators.task import PbgOperator, RetryableError
from pbg_tasks.config import SparkConnect, SparkSubmit
from pbg_tasks.errors import (
    ConfigError,
    EvictedError,
    PbgError,
    QualityGateError,
    ResourceError,
    StorageError,
    UnusableError,
)
from tests.operators.specs import spec_file

RUN = "s3://bucket/graphs/g/runs/2026-11-20-0123456789ab"
POD = {"image": "pbg:1", "allow_tag": True, "resources": {"cpu": "1", "memory": "1Gi"}}
SUBMITTED = (
    "Cannot execute: spark-submit --master yarn a.py validate. Error code is: {}.\nLast spark-submit output:\n{}"
)


def built(tmp_path, **keys):
    path = spec_file(tmp_path, "s3://bucket/store", "small", **{"resources": {"engine": "spark"}} | keys)
    (dag,) = [dag for dag in build_dags_of(path) if dag.dag_id == "reembed_small"]
    return {task.task_id.rpartition(".")[2]: task for task in dag.tasks}


@pytest.mark.parametrize(
    ("launch", "keys", "expected"),
    [
        ({"prepare": "spark_submit"}, {}, {"validate", "partition", "bucket"}),
        ({"prepare": "spark_submit"}, {"airflow": {"few_tasks": True}}, {"prepare"}),
        ({"prepare": "spark_submit"}, {"gates": {"on_failure": "ask"}}, {"validate", "partition", "bucket"}),
        (
            {"prepare": "spark_connect", "spark_connect": {"remote": "sc://spark:15002"}},
            {},
            {"plan", "validate", "partition", "bucket"},
        ),
    ],
)
def test_tasks_of_preparation_are_on_spark(tmp_path, monkeypatch, launch, keys, expected):
    monkeypatch.setattr(providers, "find_spec", lambda _: "found")
    tasks = built(tmp_path, launch=launch, **keys)
    found = {name: task.spark for name, task in tasks.items() if isinstance(task, PbgOperator) and task.spark}
    assert found.keys() == expected
    assert {type(each).__name__.lower() for each in found.values()} == {launch["prepare"].replace("_", "")}


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ({"prepare": "spark_submit"}, {"tune_prepare"}),
        (
            {"prepare": "spark_connect", "spark_connect": {"remote": "sc://spark:15002"}},
            {"tune_start", "tune_prepare", "redo_from_a_day"},
        ),
        ({"prepare": "pods", "kubernetes": POD, "spark_connect": {"remote": "sc://spark:15002"}}, set()),
    ],
)
def test_search_and_redo_prepare_as_nights_do(tmp_path, monkeypatch, launch, expected):
    monkeypatch.setattr(providers, "find_spec", lambda _: "found")
    keys = {"resources": {"engine": "spark"}, "tune": {"space": {"model.lr": [0.1, 0.3]}}, "nights": {"redo": True}}
    sections = {"snapshots": {"location": "s3://raw/{snapshot}/"}, "launch": launch, **keys}
    dags = build_dags_of(spec_file(tmp_path, "s3://bucket/store", "small", **sections))
    tasks = {task.task_id: task for dag in dags for task in dag.tasks if not dag.dag_id.startswith("reembed")}
    assert {name for name, task in tasks.items() if getattr(task, "spark", None)} == expected
    assert (tasks["tune_prepare"].kubernetes is not None) == (not expected)


@pytest.mark.parametrize("mode", ["spark_submit", "spark_kubernetes"])
def test_missing_provider_is_named_where_dags_are_parsed(tmp_path, monkeypatch, mode):
    monkeypatch.setattr(providers, "find_spec", lambda _: None)
    sections = {"spark_kubernetes": {"image": "pbg:1", "allow_tag": True}}
    with pytest.raises(ConfigError, match=rf"small\.yaml: launch\.prepare: {mode} takes apache-airflow-providers-"):
        built(tmp_path, launch={"prepare": mode, **sections})


def test_missing_provider_is_named_where_task_runs(context, monkeypatch):
    monkeypatch.setitem(sys.modules, "airflow.providers.apache", None)
    task = PbgOperator(task_id="t", command="bucket", arguments=[RUN], store_conn_id=None, spark=SparkSubmit())
    with pytest.raises(
        AirflowFailException, match=r"launch\.prepare: spark_submit takes apache-airflow-providers-apache"
    ):
        task.execute(context)


def shown_session(context, fake_pbg, launch):
    names = ("SPARK_REMOTE", "SPARK_CONNECT_AUTHENTICATE_TOKEN")
    fake_pbg(f"print(json.dumps({{name: os.environ.get(name) for name in {names!r}}}))")
    task = PbgOperator(task_id="t", command="bucket", arguments=[RUN], store_conn_id=None, spark=launch)
    return tuple(task.execute(context)[name] for name in names)


def test_command_on_worker_gets_session_of_spec(context, fake_pbg):
    assert shown_session(context, fake_pbg, SparkConnect(remote="sc://a:1/;use_ssl=true")) == (
        "sc://a:1/;use_ssl=true",
        None,
    )


def test_token_of_worker_stays_from_other_servers(context, fake_pbg, monkeypatch):
    monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", "of the worker")
    monkeypatch.setenv("AIRFLOW_CONN_CONNECT", json.dumps({"conn_type": "spark_connect", "host": "spark"}))
    _, token = shown_session(context, fake_pbg, SparkConnect(connection="connect"))
    assert token is None


@pytest.mark.parametrize(
    ("facts", "remote", "expected"),
    [
        ({"host": "spark", "password": "t"}, None, "sc://spark:15002/;use_ssl=false"),
        (
            {"host": "sc://spark", "port": 7, "password": "t", "extra": {"use_ssl": True}},
            None,
            "sc://spark:7/;use_ssl=true",
        ),
        ({"password": "t"}, "sc://other:1", "sc://other:1"),
    ],
)
def test_command_gets_session_of_connection(context, fake_pbg, monkeypatch, facts, remote, expected):
    monkeypatch.setenv("AIRFLOW_CONN_CONNECT", json.dumps({"conn_type": "spark_connect", **facts}))
    launch = SparkConnect(connection="connect", remote=remote)
    assert shown_session(context, fake_pbg, launch) == (expected, "t")


@pytest.mark.parametrize("kind", [SparkConnect, SparkSubmit])
def test_missing_connection_to_spark_is_named(context, fake_pbg, kind):
    with pytest.raises(RetryableError, match="connection 'nowhere' does not exist"):
        shown_session(context, fake_pbg, kind(connection="nowhere"))


@pytest.mark.parametrize(
    ("line", "text", "category", "sentence"),
    [
        ("error: quality_gate: too few edges", SUBMITTED.format(1, ""), QualityGateError, "pbg x: too few edges"),
        ("error: unusable: no edges", SUBMITTED.format(15, ""), UnusableError, "pbg x: no edges"),
        ("", SUBMITTED.format(6, "lost"), StorageError, "pbg x ended with status 6, .*: Error code is: 6.*lost"),
        ("", SUBMITTED.format(137, ""), ResourceError, "status 137"),
        ("", SUBMITTED.format(143, ""), EvictedError, "status 143"),
        ("", SUBMITTED.format(1, "no such master"), PbgError, "no such master"),
        ("", SUBMITTED.format(1, "User application exited with status 8"), QualityGateError, "status 8"),
        ("", "Cannot execute: x. Error code is: 0. Kubernetes spark exit code is: 8", QualityGateError, "status 8"),
        ("", "Error stack: driver container failed with ExitCode: 7, Reason: Error", ResourceError, "status 7"),
        ("", "final status: FAILED, exitCode: 13", PbgError, "status 1"),  # one of YARN's own
    ],
)
def test_end_of_application_has_category_of_command(line, text, category, sentence):
    found = error_of("pbg x", line, text)
    assert type(found) is category
    assert re.match(rf".*{sentence}", str(found))
    assert "--master" not in str(found)
