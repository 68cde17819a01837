"""Nights in DAGs of one's own, parsed by Airflow."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
import yaml
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import PartitionedAssetTimetable
from airflow.timetables.base import TimeRestriction

from tests.dags.parsed import CHAIN, REPOSITORY, stored
from tests.operators.specs import small_spec

NOTIFIER = {"use": "airflow.providers.smtp.notifications.smtp.SmtpNotifier", "on": ["failed"], "arguments": {}}
PLAIN = """
from airflow.sdk import DAG
from pbg_operators import PbgTaskGroup

with DAG("ours"):
    PbgTaskGroup({spec!r}{more})
"""


@pytest.fixture
def parse(tmp_path, monkeypatch):
    """Parse a DAG file beside a spec whose store cannot be reached."""
    monkeypatch.delenv("PBG_GRAPHS", raising=False)

    def parse(text=PLAIN, more="", **sections):
        spec = small_spec("s3://no-such-bucket", "small") | sections
        (tmp_path / "graph.yaml").write_text(yaml.safe_dump(spec))
        source = text.replace("{spec!r}", repr(str(tmp_path / "graph.yaml"))).replace("{more}", more)
        (tmp_path / "ours.py").write_text(source)
        return DagBag(tmp_path / "ours.py")

    return parse


def documented(name):
    """Return the DAG file of docs/airflow.md that imports a name."""
    text = (REPOSITORY / "docs" / "airflow.md").read_text()
    codes = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return next(code for code in codes if f"import {name}\n" in code)


def test_documented_group_is_between_own_tasks(parse):
    code = documented("PbgTaskGroup")
    assert code.count("\n") < 25
    bag = parse(code)
    assert bag.import_errors == {}
    dag = bag.dags["shop"]
    ids = [task.task_id for task in dag.topological_sort()]
    plan, summary = dag.get_task("small.prepare.plan"), dag.get_task("small.summary")
    assert plan.upstream_task_ids == {"export_edges"}
    assert "load_vectors" in summary.downstream_task_ids
    assert dag.get_task("load_vectors").upstream_task_ids == {"small.summary"}
    assert [task for task in ids if task.startswith("small.") and task != "small.report"] == [
        f"small.{task}" for task in CHAIN
    ]
    assert {"reembed", "small"} <= set(dag.tags)
    assert [asset.name for asset in dag.get_task("small.release.publish").outlets] == ["small_production"]
    assert set(stored(dag).task_ids) == set(ids)


def test_documented_consumer_follows_the_channel(parse):
    waits = parse(documented("DAG, Asset, PartitionedAssetTimetable, task")).dags["serve_shop"].timetable
    group = parse(graph="shop", store="s3://bucket/graphs/shop").dags["ours"]
    (ours,) = group.get_task("shop.release.publish").outlets
    assert isinstance(waits, PartitionedAssetTimetable)
    assert (waits.asset_condition.name, waits.asset_condition.uri) == (ours.name, ours.uri)


def test_group_pulls_results_of_its_own_tasks(parse):
    export = {"name": "table", "format": "parquet", "destination": "s3://b/{run}"}
    dag = parse(more=", group_id='night'", exports=[export], gates=small_spec("", "g")["gates"]).dags["ours"]
    texts = [
        value
        for task in dag.tasks
        for name in task.template_fields
        for value in (getattr(task, name) if isinstance(getattr(task, name), list) else [str(getattr(task, name))])
    ]
    pulled = {found for text in texts for found in re.findall(r"task_ids='([^']+)'", text)}
    assert pulled == {"night.prepare.plan", "night.prepare.bucket", "night.release.eval", "night.release.publish"}
    assert pulled <= set(dag.task_ids)


def test_group_takes_settings_of_dag_and_spec(parse):
    text = PLAIN.replace('DAG("ours")', 'DAG("ours", default_args={"owner": "dag", "retries": 7, "queue": "big"})')
    airflow = {"light": {"owner": "lights"}, "connection": "other_store", "tags": ["shop"]}
    dag = parse(text, ", default_args={'queue': 'small'}", airflow=airflow).dags["ours"]
    train, summary = dag.get_task("small.train.train"), dag.get_task("small.summary")
    assert (train.owner, train.retries, train.queue) == ("dag", 7, "small")
    assert (summary.owner, train.retry_exponential_backoff) == ("lights", 2.0)
    assert {task.store_conn_id for task in dag.tasks} == {"other_store"}
    assert {"shop", "small", "reembed"} == set(dag.tags)
    assert "snapshot" not in dag.params


@pytest.mark.parametrize(
    ("airflow", "connection"), [({}, "dags"), ({"connection": "own"}, "own"), ({"connection": "pbg_s3"}, "pbg_s3")]
)
@pytest.mark.parametrize(
    "made",
    [
        "with DAG('ours', default_args={'store_conn_id': 'dags'}):\n    PbgTaskGroup({spec!r})",
        "dag = build_dag({spec!r}, 'ours', default_args={'store_conn_id': 'dags'})",
    ],
)
def test_connection_of_spec_goes_before_that_of_dag(parse, made, airflow, connection):
    text = f"from airflow.sdk import DAG\nfrom pbg_operators import PbgTaskGroup, build_dag\n\n{made}\n"
    parts = {"eval": {"parts": 2}, "exports": [{"format": "npy", "parts": 2}]}
    tasks = list(parse(text, airflow=airflow, **parts).dags["ours"].tasks)
    mapped = [task.partial_kwargs["store_conn_id"] for task in tasks if hasattr(task, "partial_kwargs")]
    assert mapped == [connection, connection]
    assert {task.store_conn_id for task in tasks if hasattr(task, "store_conn_id")} == {connection}


@pytest.mark.parametrize("given", ["print", "[print]", "{print}"])
def test_failed_task_calls_notifiers_and_own_callback(parse, given):
    text = PLAIN.replace('DAG("ours")', f'DAG("ours", default_args={{"on_failure_callback": {given}}})')
    dag = parse(text, nights={"notify": [NOTIFIER]}).dags["ours"]
    assert [type(each).__name__ for each in dag.get_task("small.train.train").on_failure_callback] == [
        "Alert",
        "builtin_function_or_method",
    ]


def test_group_with_form_and_few_tasks_is_parsed(parse):
    dag = parse(more=", form=True, prefix_group_id=False", airflow={"few_tasks": True}).dags["ours"]
    assert dag.params["publish"] == "auto"
    assert {"prepare.plan", "prepare.prepare", "train.train", "release.finish", "summary", "report"} == set(
        dag.task_ids
    )


@pytest.mark.parametrize(("more", "form"), [("", False), (", form=True", True)])
def test_group_obeys_params_of_its_form_only(parse, more, form):
    dag = parse(PLAIN.replace('DAG("ours")', 'DAG("ours", params={"ranks": 7})'), more).dags["ours"]
    assert dag.get_task("small.prepare.plan").form is form
    assert ("params" in dag.get_task("small.train.train").ranks) is form


def test_built_dag_takes_arguments_of_its_own(parse):
    text = """
# Airflow DAG of our graph
from pbg_operators import build_dag

dag = build_dag({spec!r}, "own", schedule="@daily", tags=["team"], default_args={"owner": "graphs"},
                params={"region": "eu"})
"""
    dag = parse(text).dags["own"]
    assert {task.owner for task in dag.tasks} == {"graphs"}
    assert {"team", "small", "reembed"} == set(dag.tags)
    assert (dag.params["region"], dag.params["publish"]) == ("eu", "auto")
    assert {task.store_conn_id for task in dag.tasks} == {"pbg_s3"}


@pytest.mark.parametrize(
    ("nights", "key"),
    [
        ({}, "2026-11-20"),
        ({"calendar": {"cron": "0 2 * * 1", "offset": 0, "key_format": "%Y%m%d"}}, "20261121"),
        ({"calendar": {"cron": "0 2 * * 1", "timezone": "Asia/Tokyo"}}, "2026-11-21"),
    ],
)
def test_documented_daily_run_has_its_snapshot_as_key(parse, monkeypatch, tmp_path, nights, key):
    monkeypatch.setenv("PBG_GRAPHS", str(tmp_path))
    bag = parse(documented("build_dag"), nights=nights)
    assert bag.import_errors == {}
    since = TimeRestriction(datetime(2026, 11, 20, 20, tzinfo=UTC), None, catchup=True)
    run = stored(bag.dags["shop_graph"]).timetable.next_dagrun_info_v2(last_dagrun_info=None, restriction=since)
    assert run.partition_key == key


HEAD = """
from datetime import timedelta
from airflow.sdk import DAG, Asset, CronPartitionTimetable, CronTriggerTimetable, PartitionedAssetTimetable
from pbg_operators import PbgTaskGroup, build_dag

"""
WITHOUT_KEYS = {"timedelta(days=1)": "DeltaTriggerTimetable", "[Asset('edges')]": "AssetTriggeredTimetable"}


@pytest.mark.parametrize(
    ("schedule", "kind"), {**WITHOUT_KEYS, "CronTriggerTimetable('@daily', timezone='UTC')": "Cron"}.items()
)
def test_built_dag_without_keys_is_refused(parse, schedule, kind):
    (error,) = parse(
        f"{HEAD}# Airflow\ndag = build_dag({{spec!r}}, 'own', schedule={schedule})\n"
    ).import_errors.values()
    last = error.strip().splitlines()[-1]
    assert f"graph.yaml: the schedule of DAG 'own', {kind}" in last
    assert "take a cron text, such as '@daily', or CronPartitionTimetable, PartitionedAssetTimetable, or None" in last


@pytest.mark.parametrize("schedule", ["@once", "daily"])
def test_schedule_that_is_no_cron_is_refused(parse, schedule):
    (error,) = parse(f"{HEAD}dag = build_dag({{spec!r}}, 'own', schedule={schedule!r})\n").import_errors.values()
    assert f"graph.yaml: schedule='{schedule}': " in error
    assert error.strip().endswith("write a cron text such as '0 2 * * *'")


@pytest.mark.parametrize(("schedule", "kind"), {**WITHOUT_KEYS, "'@daily'": "CronTriggerTimetable"}.items())
def test_group_without_snapshot_or_keys_is_refused(parse, schedule, kind):
    text = f"{HEAD}with DAG('ours', schedule={schedule}):\n    PbgTaskGroup({{spec!r}}{{more}})\n"
    (error,) = parse(text).import_errors.values()
    last = error.strip().splitlines()[-1]
    assert f"graph.yaml: group 'small': the schedule of DAG 'ours', {kind}" in last
    assert "name the snapshot by snapshot=, a template or a task's result, or take a schedule with keys" in last
    assert parse(text, ", snapshot='{{ ds }}'").import_errors == {}


@pytest.mark.parametrize(
    "schedule",
    ["CronPartitionTimetable('@daily', timezone='UTC')", "PartitionedAssetTimetable(assets=Asset('edges'))", "None"],
)
def test_schedule_with_keys_is_kept(parse, schedule):
    made = f"dag = build_dag({{spec!r}}, 'own', schedule={schedule})\n"
    grouped = f"with DAG('ours', schedule={schedule}):\n    PbgTaskGroup({{spec!r}})\n"
    bag = parse(HEAD + made + grouped)
    assert bag.import_errors == {}
    kind = schedule.partition("(")[0].replace("None", "NullTimetable")
    assert [type(dag.timetable).__name__ for dag in bag.dags.values()] == [kind, kind]


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"airflow": {"default_args": {"retries": 1}}}, "airflow: write the keys of default_args under 'all'"),
        ({"airflow": {"ownr": "x"}}, "unknown key 'airflow.ownr'"),
        ({"airflow": {"all": {"ownr": "x"}}}, "unknown key 'airflow.all.ownr'; did you mean 'owner'?"),
        ({"airflow": {"tags": ["broken"]}}, "tag 'broken' is one by which the pages find DAGs"),
        ({"airflow": {"connection": "my store"}}, "airflow.connection"),
    ],
)
def test_wrong_key_is_one_sentence(parse, sections, sentence):
    (error,) = parse(**sections).import_errors.values()
    last = error.strip().splitlines()[-1]
    assert "graph.yaml: " in last
    assert sentence in last


def test_missing_spec_is_one_sentence(parse):
    (error,) = parse(PLAIN.replace("{spec!r}", "'/no/such.yaml'")).import_errors.values()
    assert error.strip().splitlines()[-1].endswith("mend the path in the DAG file")
    (error,) = parse(PLAIN.replace("{spec!r}", "'graph.yaml'")).import_errors.values()
    assert "write an absolute path, Path(__file__).parent / ..." in error
