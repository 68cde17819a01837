"""Commands as SparkApplications, by the provider's operator, in a double."""

from __future__ import annotations

import time

import pytest
import yaml
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from structlog.testing import capture_logs

from pbg_operators.spark.application import manifest
from pbg_operators.task import PbgOperator, Refused, RetryableError
from pbg_tasks.config import SparkKubernetes
from tests.docker.files import REPOSITORY
from tests.operators.kubernetes.conftest import RUN
from tests.operators.kubernetes.double.spark import DRIVER

IMAGE = f"registry.example/pbg-spark@sha256:{'0' * 64}"
SIZES = {
    "driver": {"cores": 1, "memory": "2g", "serviceAccount": "spark"},
    "executor": {"instances": 2, "cores": 2, "memory": "4g", "env": [{"name": "TZ", "value": "UTC"}]},
}
LAUNCH = SparkKubernetes(
    image=IMAGE,
    conf={"spark.authenticate": True},
    secret="store-keys",  # noqa: S106 - the name of an object
    template={"metadata": {"labels": {"team": "graphs"}}, "spec": {**SIZES, "sparkVersion": "4.0.1"}},
)
COMMAND = """
    if sys.argv[1] == "show":
        print(json.dumps({"shown": sys.argv[2:]}))
        sys.exit()
    print("at work", sys.argv[1:], flush=True)

    def end(line, status):
        open(os.environ["PBG_ERROR_FILE"], "w").write(line)
        sys.exit(status)
"""
LATE = "    time.sleep(.5)\n"
"""Time in which the provider sees the driver run; it has another way where it does not."""


@pytest.fixture
def context(context):
    context["ti"].try_number = 1
    context["ti"].stats_tags = {}
    return context | {"run_id": "manual__1", "dag": object(), "task_instance": context["ti"]}


@pytest.fixture
def quick(monkeypatch):
    """Let the provider look ten times a second instead of every ten."""
    from airflow.providers.cncf.kubernetes.operators import custom_object_launcher

    sleep = time.sleep
    monkeypatch.setattr(custom_object_launcher.time, "sleep", lambda _: sleep(0.05))


def outcome(context, **changes):
    launch = LAUNCH.model_copy(update={"secret": None} | changes)
    task = PbgOperator(task_id="t", command="bucket", arguments=[RUN], store_conn_id=None, spark=launch)
    try:
        return task.execute(context)
    except AirflowException as error:
        return error


def test_application_has_command_and_sizes_of_template():
    found = manifest(LAUNCH, ("bucket", RUN), {"AWS_REGION": "eu"})
    region, keys = {"name": "AWS_REGION", "value": "eu"}, [{"secretRef": {"name": "store-keys"}}]
    driver, executor = found["spec"]["driver"], found["spec"]["executor"]
    assert (found["kind"], found["metadata"]) == ("SparkApplication", {"labels": {"team": "graphs"}})
    assert found["spec"]["arguments"] == ["bucket", RUN, "--json"]
    assert (found["spec"]["image"], found["spec"]["sparkVersion"]) == (IMAGE, "4.0.1")
    assert found["spec"]["sparkConf"] == {"spark.authenticate": "true"}
    assert found["spec"]["restartPolicy"] == {"type": "Never"}
    assert (driver["memory"], driver["envFrom"], executor["envFrom"]) == ("2g", keys, keys)
    assert executor["env"] == [{"name": "TZ", "value": "UTC"}, region]
    assert driver["env"][0] == region
    assert LAUNCH.template["spec"]["driver"] == SIZES["driver"]  # as it was


def test_provider_accepts_the_template():
    from airflow.providers.cncf.kubernetes.operators.custom_object_launcher import CustomObjectLauncher

    body = manifest(LAUNCH, ("bucket", RUN), {})
    made = CustomObjectLauncher("pbg-bucket", "nights", None, None, {"spark": body}).body
    assert made["metadata"] == {"labels": {"team": "graphs"}, "name": "pbg-bucket", "namespace": "nights"}
    assert made["spec"]["driver"]["memory"] == "2g"


@pytest.mark.usefixtures("quick")
def test_command_runs_in_driver_and_result_is_stored(double, fake_pbg, context):
    fake_pbg(COMMAND + LATE)
    with capture_logs() as logged:
        assert outcome(context) == {"shown": [RUN, "--task=bucket", "--json"]}
    assert any("at work ['bucket'" in str(entry) for entry in logged)
    assert not double.objects.everything("sparkapplications")  # deleted when it has succeeded
    warned = [entry["event"] for entry in logged if "outside of the Task Runner" in str(entry["event"])]
    assert [event for event in warned if not event.startswith("PbgOperator")] == []


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("status", [0, 8])
def test_application_needs_only_the_documented_role(double, fake_pbg, context, status):
    documents = yaml.safe_load_all((REPOSITORY / "docker" / "kubernetes" / "role.yaml").read_text())
    double.rules = next(document for document in documents if document["kind"] == "Role")["rules"]
    fake_pbg(COMMAND + LATE + f"    end('error: quality_gate: too few edges', {status})")
    found = outcome(context)
    assert isinstance(found, Refused) if status else found == {"shown": [RUN, "--task=bucket", "--json"]}
    assert not double.objects.everything("sparkapplications")


@pytest.mark.usefixtures("double", "quick")
@pytest.mark.parametrize(
    ("late", "line", "status", "expected"),
    [
        (LATE, "error: quality_gate: too few edges", 8, Refused),
        ("", "error: quality_gate: too few edges", 8, Refused),
        (LATE, "error: storage: executors are lost", 6, RetryableError),
        (LATE, "error: config: no such key", 2, AirflowFailException),
    ],
)
def test_end_of_driver_is_classified_as_on_workers(fake_pbg, context, late, line, status, expected):
    fake_pbg(COMMAND + late + f"    end({line!r}, {status})")
    found = outcome(context)
    assert type(found) is expected
    assert str(found).endswith(f"bucket: {line.rpartition(': ')[2]}")


@pytest.mark.usefixtures("quick")
def test_driver_out_of_memory_names_its_key(double, fake_pbg, context):
    fake_pbg(COMMAND + "    time.sleep(60)")
    double.before = lambda _method, path: double.starve(0) if path.endswith("/log") and double._running(0) else None
    found = outcome(context)
    assert isinstance(found, RetryableError)
    assert "raise spec.driver.memory or memoryOverhead in launch.spark_kubernetes.template" in str(found)


def test_missing_connection_is_a_reason(context):
    found = outcome(context, connection="nowhere")  # Airflow tries any error again but one for good
    assert not isinstance(found, AirflowFailException)
    assert context["ti"].pushed["error"] == str(found) == "The conn_id `nowhere` isn't defined"


def test_refusal_by_cluster_is_for_good(double, context):
    double.rules = []
    found = outcome(context)
    assert isinstance(found, AirflowFailException)
    assert str(found).startswith("access: pbg bucket: Kubernetes API: pods is forbidden")


@pytest.mark.usefixtures("surroundings")
def test_refusal_of_unnamed_cluster_may_pass(double, context):
    double.rules = []
    found = outcome(context)
    assert isinstance(found, RetryableError)
    assert "connection 'kubernetes_default' names no cluster, or Airflow did not find it" in str(found)


def test_driver_of_double_has_name_that_provider_follows():
    from airflow.providers.cncf.kubernetes.operators.spark_kubernetes import SparkKubernetesOperator

    assert DRIVER == SparkKubernetesOperator.BASE_CONTAINER_NAME
