"""Credentials in URLs on Airflow's side.

Parsing, connections, arguments, links and logs show none.
"""

from __future__ import annotations

import json

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization
from structlog.testing import capture_logs

from pbg_operators.connection import with_store
from pbg_operators.form import trigger_form
from pbg_operators.graphs import build_dags
from pbg_operators.link import address_of_run
from pbg_operators.plan import PlanOperator
from pbg_operators.task import ERROR_KEY, PbgOperator
from pbg_tasks.config import load_graph_spec
from tests.operators.specs import spec_file

USER, SECRET = "CANARYUSER", "CANARY/Se+cret"
AT = f"{USER}:{SECRET}@"
BAD = f"s3://{AT}bucket/x"
RUN = "s3://bucket/graphs/g/runs/day-0123456789ab"
ENDPOINTS = [
    f"http://{AT}127.0.0.1:9",
    f"{AT}127.0.0.1:9",
    f"http://127.0.0.1:9/?X-Amz-Signature={SECRET}",
]


def hidden(text):
    return "CANARY" not in str(text)


@pytest.mark.parametrize(
    "change",
    [
        {"store": BAD},
        {"snapshots": {"location": f"{BAD}/{{snapshot}}"}},
        {"exports": [{"format": "tsv", "destination": f"{BAD}/{{run}}"}]},
        {"storage_options": {"secret": SECRET, "endpoint": f"http://{AT}host"}},
        {"nights": {"notify": [{"use": "a.b", "arguments": {"url": f"https://{AT}hooks"}}]}},
    ],
)
def test_parsed_dag_holds_no_credentials_of_its_spec(tmp_path, change, capfd):
    spec_file(tmp_path, tmp_path, "g", **change)
    with capture_logs() as logged:
        (dag,) = build_dags(tmp_path)
        stored = json.dumps(DagSerialization.to_dict(dag))
        with pytest.raises(AirflowFailException) as caught:
            dag.get_task("read_spec").python_callable()
    assert dag.dag_id == "broken_g"
    assert next(iter(change)) in dag.description
    captured = capfd.readouterr()
    assert hidden([stored, logged, captured.out, captured.err, caught.value])


@pytest.mark.parametrize("endpoint", [*ENDPOINTS, "http://169.254.169.254", "http://93.184.216.34", "ftp://h"])
def test_connection_with_bad_endpoint_is_refused_by_name(monkeypatch, context, endpoint):
    said = {"conn_type": "aws", "login": "a", "password": "b", "extra": {"endpoint_url": endpoint}}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(said))
    task = PbgOperator(task_id="t", command="train", arguments=[RUN], store_conn_id="store")
    with capture_logs() as logged, pytest.raises(AirflowFailException, match=r"'store', endpoint_url of its") as caught:
        task.execute(context)
    assert hidden([logged, caught.value, context["ti"].pushed])


def test_connection_may_allow_a_host_without_encryption(monkeypatch):
    extra = {"endpoint_url": "http://93.184.216.34:9000", "allow_http_endpoint": "93.184.216.34"}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": "aws", "extra": extra}))
    given = with_store({"AWS_ENDPOINT_URL_S3": "http://another:1"}, "store")
    assert given["PBG_ALLOW_HTTP_ENDPOINT"] == "93.184.216.34"
    assert given["AWS_ENDPOINT_URL_S3"] == given["AWS_ENDPOINT_URL"] == extra["endpoint_url"]


def test_profile_of_connection_goes_before_keys_of_worker(monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": "pbg", "extra": {"profile_name": "shop"}}))
    worker = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "c", "HOME": "/h"}
    assert with_store(worker, "store") == {"AWS_PROFILE": "shop", "HOME": "/h"}


def test_keys_in_extra_go_before_those_of_worker(monkeypatch):
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": "aws", "extra": keys}))
    worker = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "c", "HOME": "/h"}
    assert with_store(worker, "store") == {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "HOME": "/h"}


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_task_refuses_endpoint_of_worker_and_stores_none(monkeypatch, context, variable, endpoint):
    """Run the real command.

    Airflow stores its link before the command can refuse the endpoint.
    """
    monkeypatch.setenv(variable, endpoint)
    task = PbgOperator(task_id="t", command="train", arguments=[RUN], store_conn_id=None)
    with capture_logs() as logged, pytest.raises(AirflowFailException, match=variable) as caught:
        task.execute(context)
    assert hidden([logged, caught.value, context["ti"].pushed])
    (link,) = task.operator_extra_links
    assert context["ti"].pushed == {
        link.xcom_key: address_of_run("reembed_toy", "manual__1"),
        ERROR_KEY: f"pbg train ended with status 2: config: {variable} holds credentials: write the endpoint alone, "
        "and the keys into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or the Airflow connection",
    }


@pytest.mark.parametrize("argument", [BAD, f"--into={BAD}", "{{ params.place }}"])
def test_argument_with_credentials_is_refused_unstored(context, argument):
    """Airflow stores and shows rendered fields, and only if rendering succeeds."""
    with DAG("d", schedule=None):
        task = PbgOperator(task_id="t", command="train", arguments=[RUN, argument])
    with (
        capture_logs() as logged,
        pytest.raises(AirflowFailException, match=r"^argument 2 of the task holds") as caught,
    ):
        task.render_template_fields(context | {"params": {"place": BAD}})
    assert hidden([logged, caught.value])


def test_form_with_credentials_is_refused_unstored(tmp_path, context):
    spec = spec_file(tmp_path, tmp_path, "g")
    form = trigger_form(load_graph_spec(spec))
    params = {name: param.value for name, param in form.items()} | {"snapshot": "d1", "accept_data": f"see {BAD}"}
    task = PlanOperator(task_id="t", spec=str(spec))
    with capture_logs() as logged, pytest.raises(AirflowFailException, match="holds a user name") as caught:
        task.execute(context | {"params": params})
    assert hidden([logged, caught.value, task.arguments])
