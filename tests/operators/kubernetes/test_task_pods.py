"""Tasks beside the training that are pods.

Their Jobs, results, refusals, and mistakes in the spec.
"""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
import yaml
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from structlog.testing import capture_logs

from pbg_operators.export import ExportOperator
from pbg_operators.gate import ApprovalGateOperator
from pbg_operators.kubernetes import manifest
from pbg_operators.parts import EvalPartOperator
from pbg_operators.reembed import build_dags_of
from pbg_operators.task import PbgOperator, Refused, RetryableError, Unusable
from pbg_tasks.config import GraphSpec
from pbg_tasks.config.base import parse
from pbg_tasks.errors import ConfigError
from tests.operators.connections import CONNECTION
from tests.operators.kubernetes.conftest import IMAGE, RUN, launch
from tests.operators.kubernetes.jobs import logged_lines
from tests.operators.specs import small_spec

COMMAND = """
    if sys.argv[1] == "show":
        print(json.dumps({"shown": sys.argv[2:]}))
        sys.exit()
    known = {"WORLD_SIZE", "MASTER_ADDR", "PBG_RUN_TOKEN", "PBG_SCRATCH"}
    print("at work", sorted(known & set(os.environ)), flush=True)
"""


def bucket(command="bucket"):
    given = {"kubernetes": launch(deferrable=False), "store_conn_id": None, "interval": 0.05}
    return PbgOperator(task_id="t", command=command, arguments=[RUN], **given)


def outcome(task, context):
    try:
        return task.execute(context)
    except AirflowException as error:
        return error


def test_task_is_one_pod_that_meets_no_other(double, fake_pbg, context):
    fake_pbg(COMMAND)
    with capture_logs() as logged:
        assert bucket().execute(context) == {"shown": [RUN, "--task=bucket", "--json"]}
    assert "[bucket] at work ['PBG_SCRATCH']" in logged_lines(logged)
    (job,), (pod,) = double.jobs(), double.pods()
    assert job["metadata"]["name"].startswith("pbg-bucket-2026-11-20-")
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "bucket"
    assert pod["spec"]["containers"][0]["command"][4:] == ["bucket", RUN, "--json"]
    assert not double.objects.everything("services")
    assert bucket().execute(context) == {"shown": [RUN, "--task=bucket", "--json"]}
    assert len(double.jobs()) == 1  # the Job that succeeded was found


def test_each_dag_run_makes_its_own_job(double, fake_pbg, context):
    fake_pbg(COMMAND)
    bucket().execute(context)
    context["ti"].run_id = "manual__2"
    context["task_state_store"].kept.clear()
    bucket().execute(context)
    context["task_state_store"].kept.clear()
    bucket("eval").execute(context)
    assert len({job["metadata"]["name"] for job in double.jobs()}) == 3


def test_cleared_task_of_another_run_makes_its_job(double, fake_pbg, context):
    """The cluster still has the Job of the first run."""
    fake_pbg(COMMAND)
    bucket().execute(context)
    task, other = bucket(), RUN.replace("0123456789ab", "ba9876543210")
    task.arguments = [other]
    assert task.execute(context) == {"shown": [other, "--task=bucket", "--json"]}
    assert {job["metadata"]["annotations"][manifest.RUN] for job in double.jobs()} == {RUN, other}


def test_part_of_evaluation_is_its_own_pod(double, fake_pbg, context):
    fake_pbg(COMMAND)
    for number, arguments in enumerate(EvalPartOperator.arguments_of(RUN, 2), start=1):
        given = {"kubernetes": launch(deferrable=False), "store_conn_id": None, "interval": 0.05}
        context["ti"].map_index = number - 1
        context["task_state_store"].kept.clear()
        part = EvalPartOperator(task_id="eval_part", command="eval", arguments=arguments, **given)
        assert part.execute(context) == {"shown": [RUN, f"--task=eval-{number}-of-2", "--json"]}
    commands = {tuple(pod["spec"]["containers"][0]["command"][4:]) for pod in double.pods()}
    assert commands == {("eval", RUN, f"--part={number}/2", "--json") for number in (1, 2)}
    assert all(job["metadata"]["name"].startswith("pbg-eval-part-2026-11-20-") for job in double.jobs())


@pytest.mark.parametrize(
    ("status", "line", "expected"),
    [
        (2, "error: config: num_partitions: 3 is odd", AirflowFailException),
        (5, "error: conflict: another bucket task", AirflowFailException),
        (7, "error: resource: no memory", RetryableError),
        (8, "error: quality_gate: too few edges", Refused),
        (15, "error: unusable: no edges at all", Unusable),
    ],
)
def test_end_of_pod_is_classified_as_on_workers(double, fake_pbg, context, status, line, expected):
    fake_pbg(COMMAND + f"    print({line!r}, flush=True); sys.exit({status})")
    found = outcome(bucket(), context)
    assert type(found) is expected
    assert str(found).endswith(line.rpartition(": ")[2])
    assert ": bucket: " in str(found)


def test_memory_error_names_section_of_task(double, fake_pbg, context):
    fake_pbg(COMMAND + "    time.sleep(60)")
    double.before = lambda _method, path: double.starve(0) if path.endswith("/log") and double._running(0) else None
    found = outcome(bucket(), context)  # the pod is killed while its log is read
    assert isinstance(found, RetryableError)
    assert "bucket ran out of memory (limit 2Gi): raise launch.tasks.bucket.resources.memory" in str(found)


async def watched(trigger):
    return (await anext(trigger.run())).payload


def resumed(task, context):
    """Run a deferrable task to its end, through the triggerer."""
    with pytest.raises(TaskDeferred) as caught:
        task.execute(context)
    event = asyncio.run(watched(caught.value.trigger))
    return getattr(task, caught.value.method_name)(context, json.loads(json.dumps(event)))


@pytest.mark.usefixtures("double")
def test_deferred_export_announces_after_its_job(fake_pbg, context):
    written = {"destination": "s3://b/e", "format": "parquet", "types": {}, "announced": False}
    fake_pbg(f"print(json.dumps({written!r}))")
    keys = []
    event = SimpleNamespace(extra=None, add_partitions=keys.append)
    asset = Asset("s3://b/e")
    given = {"export": "export-table", "snapshot": '"d1"', "published": "true", "store_conn_id": None}
    task = ExportOperator(
        task_id="table", arguments=[RUN, "table"], asset=asset, kubernetes=launch(), interval=0.05, **given
    )
    result = resumed(task, context | {"outlet_events": {asset: event}})
    assert result["destination"] == "s3://b/e"
    assert keys == ["d1"]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("deferrable", [True, False])
def test_pod_without_keys_is_tried_again(fake_pbg, context, monkeypatch, deferrable):
    """Airflow found no connection when its Job was made."""
    fake_pbg(COMMAND + "    print('error: access: no usable S3 credentials', flush=True); sys.exit(9)")
    monkeypatch.setenv("AIRFLOW_CONN_PBG_S3", json.dumps(CONNECTION))
    run = resumed if deferrable else PbgOperator.execute

    def ended(conn_id):
        given = {"kubernetes": launch(deferrable=deferrable), "store_conn_id": conn_id, "interval": 0.05}
        with pytest.raises(AirflowException) as caught:
            run(PbgOperator(task_id="t", command="bucket", arguments=[RUN], **given), context)
        return caught.value

    with monkeypatch.context() as patch:
        patch.setattr("pbg_operators.on_cluster.with_store", lambda own, _: own)
        found = ended("pbg_s3")
        assert isinstance(found, RetryableError)
        assert "no usable S3 credentials; Airflow found no connection 'pbg_s3': add it" in str(found)
        assert isinstance(ended(None), AirflowFailException)
    assert isinstance(ended("pbg_s3"), AirflowFailException)


@pytest.mark.usefixtures("double")
def test_refused_pod_asks_for_approval(fake_pbg, context, monkeypatch):
    fake_pbg(COMMAND + "    print('error: quality_gate: too few', flush=True); sys.exit(8)")
    asked = []
    monkeypatch.setattr(
        "airflow.providers.standard.operators.hitl.ApprovalOperator.execute", lambda self, _: asked.append(self.body)
    )
    given = {"store_conn_id": None, "interval": 0.05, "kubernetes": launch()}
    given |= {"command": "partition", "arguments": [RUN], "snapshot": "d1", "hours": 1}
    task = ApprovalGateOperator(task_id="partition", **given)
    resumed(task, context)
    assert "too few" in asked[0]


# The spec


def spec(**launched):
    return small_spec("s3://bucket/store", "small") | {"launch": launched}


COMMON = {"image": IMAGE, "resources": {"cpu": "1", "memory": "2Gi"}, "namespace": "pbg"}


def test_dag_gives_each_task_its_pod(tmp_path):
    own = {"resources": {"cpu": "32", "memory": "256Gi"}, "connection": "prep_cluster"}
    export = {"name": "table", "format": "parquet"}
    document = spec(kubernetes=COMMON, tasks={"partition": own, "bucket": {}, "eval": own, "drift": {}, "export": own})
    document["gates"]["on_failure"] = "ask"
    document["snapshots"]["location"] = "s3://bucket/{snapshot}.parquet"
    path = tmp_path / "g.yaml"
    path.write_text(yaml.safe_dump(document | {"exports": [export]}))
    (dag,) = [dag for dag in build_dags_of(path) if dag.dag_id == "reembed_small"]
    made = {task.task_id.rpartition(".")[2]: task.kubernetes for task in dag.tasks if isinstance(task, PbgOperator)}
    pods = {name for name, pod in made.items() if pod is not None}
    assert pods == {"partition", "bucket", "eval", "drift", "table"}
    assert made["partition"].resources["memory"] == "256Gi"
    assert made["partition"].image == IMAGE  # inherited
    drift = next(task for task in dag.tasks if task.task_id == "release.drift")
    assert drift.execution_timeout is None  # a light task's hour would count while its Job waits for room
    assert (made["eval"].connection, made["bucket"].connection) == ("prep_cluster", "kubernetes_default")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"launch": {"tasks": {"exports": COMMON}}}, "export_part, prepare, finish; did you mean 'export'?"),
        ({"launch": {"tasks": {"gate": COMMON}}}, "launch: tasks names 'gate'; tasks that can be pods: validate"),
        ({"launch": {"tasks": {"train": COMMON}}}, "train has the section kubernetes"),
        ({"launch": {"tasks": {"tune_trial": COMMON}}}, "on workers, which airflow.tasks.tune_trial chooses"),
        ({"launch": {"tasks": {"eval": {}}}}, "launch.tasks.eval.image"),
        ({"launch": {"tasks": {"eval": COMMON | {"memry": 1}}}}, "unknown key 'launch.tasks.eval.memry'"),
        ({"launch": {"tasks": {"finish": COMMON}}}, "'finish', which is a task with airflow.few_tasks"),
        (
            {"launch": {"tasks": {"eval": COMMON}}, "airflow": {"few_tasks": True}},
            "'eval', which with airflow.few_tasks is part of the task 'finish'",
        ),
        ({"launch": {"tasks": {"eval": COMMON}}, "store": "/srv"}, "launch.tasks.eval is a pod, .* store '/srv'"),
        ({"launch": {"tasks": {"validate": COMMON}}}, "launch.tasks.validate is a pod, .* snapshots.location"),
        (
            {"launch": {"tasks": {"export": COMMON}}, "exports": [{"format": "npy", "destination": "/srv/{run}"}]},
            "launch.tasks.export is a pod, .* destination of export npy '/srv'",
        ),
    ],
)
def test_each_mistake_of_tasks_is_named(changes, sentence):
    document = spec() | {"snapshots": {"location": "/local/{snapshot}.parquet"}}
    with pytest.raises(ConfigError, match=sentence):
        parse(GraphSpec, document | changes, source="graph.yaml")
