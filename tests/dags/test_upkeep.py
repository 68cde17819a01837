"""The DAGs beside the nights, requested by the spec or not."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest
from airflow.dag_processing.dagbag import DagBag

from pbg_operators.deadline import PublishedBy
from tests.dags.in_process import store_dags
from tests.dags.parsed import DAGS, parse, stored
from tests.operators.specs import spec_file

ALL = {
    "watch": {"complete": "manifest"},
    "collect": {"cron": "0 11 * * *", "keep_releases": 3, "grace_hours": 48},
    "deadline": {"at": "06:00", "timezone": "Europe/Berlin"},
    "calendar": {"cron": "0 2 * * *"},
    "notify": [{"use": "airflow.providers.smtp.notifications.smtp.SmtpNotifier", "arguments": {"to": "a@b"}}],
}


@pytest.fixture
def graphs(tmp_path, monkeypatch):
    (tmp_path / "graphs").mkdir()
    monkeypatch.setenv("PBG_GRAPHS", str(tmp_path / "graphs"))
    return tmp_path / "graphs"


def bag_of(graphs, **specs):
    for name, changes in specs.items():
        spec_file(graphs, graphs.parent, name, **changes)
    bag = DagBag(DAGS)
    assert bag.import_errors == {}
    return bag


def test_spec_with_everything_has_all_dags(graphs):
    bag = bag_of(graphs, small={"nights": ALL, "gates": {"on_failure": "ask", "ask_hours": 8}})
    kinds = ("reembed", "nightly", "drill", "watch", "collect")
    assert set(bag.dags) == {f"{kind}_small" for kind in kinds}
    for dag in bag.dags.values():
        assert set(stored(dag).task_ids) == set(dag.task_ids)
        assert dag.on_failure_callback is not None
    assert {kind for kind in kinds if bag.dags[f"{kind}_small"].deadline} == {"reembed", "nightly"}


def test_only_event_driven_dags_start_unpaused(graphs):
    bag = bag_of(graphs, small={"nights": ALL})
    assert {dag_id: dag.is_paused_upon_creation for dag_id, dag in bag.dags.items()} == {
        "reembed_small": False,
        "nightly_small": None,
        "drill_small": None,
        "watch_small": None,
        "collect_small": None,
    }


def test_arrival_begins_night_of_new_graph(graphs):
    from airflow.assets.manager import asset_manager
    from airflow.models.asset import AssetModel, AssetPartitionDagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    store_dags(bag_of(graphs, fresh={"nights": {"watch": {}}}))
    with create_session() as session:
        edges = session.scalars(select(AssetModel).where(AssetModel.name == "fresh_edges")).one()
        asset_manager.register_asset_change(asset=edges, partition_key="2026-11-20", session=session)
    with create_session() as session:
        begun = session.execute(select(AssetPartitionDagRun.target_dag_id, AssetPartitionDagRun.partition_key))
        assert [tuple(row) for row in begun] == [("reembed_fresh", "2026-11-20")]


def test_collection_is_that_of_command_line(graphs, tmp_path):
    (task,) = bag_of(graphs, small={"nights": ALL}).dags["collect_small"].tasks
    assert [task.command, *task.arguments] == [
        "gc",
        f"{tmp_path}/store/small",
        "--channel=production",
        "--keep-releases=3",
        "--keep-days=0.0",
        "--grace=48.0",
    ]


def test_collection_is_due_by_utc(graphs, monkeypatch):
    monkeypatch.setattr("airflow.settings.TIMEZONE", ZoneInfo("Europe/Berlin"))
    dag = bag_of(graphs, small={"nights": ALL}).dags["collect_small"]
    assert (dag.timetable.expression, dag.timetable.timezone) == ("0 11 * * *", "UTC")


@pytest.mark.parametrize(("rules", "kept"), [({}, 3), ({"after_nights": 2}, 3), ({"after_nights": 5}, 5)])
def test_collection_keeps_nights_that_promotion_counts(graphs, rules, kept):
    promoted = {"channel": "shadow", "promote": {"to": "production", **rules}}
    (task,) = bag_of(graphs, small={"nights": ALL, **promoted}).dags["collect_small"].tasks
    assert task.arguments[1:4] == ["--channel=shadow", "--channel=production", f"--keep-releases={kept}"]


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 2/0 * * *"])
def test_wrong_schedule_breaks_collection_alone(graphs, cron):
    bag = bag_of(graphs, small={"nights": ALL | {"collect": {"cron": cron}}})
    assert {f"{kind}_small" for kind in ("reembed", "nightly", "drill", "watch", "collect")} == set(bag.dags)
    broken = bag.dags["collect_small"]
    assert "broken" in broken.tags
    assert "small.yaml: nights.collect.cron: " in broken.description


def test_watch_continues_with_one_run_at_time(graphs):
    dag = bag_of(graphs, small={"nights": ALL}).dags["watch_small"]
    assert type(dag.timetable).__name__ == "ContinuousTimetable"
    assert dag.max_active_runs == 1
    assert [task.task_id for task in dag.topological_sort()] == ["wait_for_snapshots", "remember"]
    (edges,) = dag.get_task("wait_for_snapshots").outlets
    assert bag_of(graphs).dags["reembed_small"].timetable.asset_condition == edges


@pytest.mark.parametrize("cleared", [0, 1, 4])  # try after which the task was cleared, as when its keys were mended
def test_refused_watch_alerts_once_and_retries_daylong(graphs, tmp_path, cleared):
    notify = {
        "use": "tests.stack.notifier.FileNotifier",
        "on": ["failed"],
        "arguments": {"path": str(tmp_path / "told"), "text": "{{ pbg.text }}"},
    }
    dag = bag_of(graphs, small={"nights": {"watch": {}, "notify": [notify]}}).dags["watch_small"]
    task = dag.get_task("wait_for_snapshots")
    refused = {"dag": dag, "task": task, "run_id": "watch-1", "exception": "access: no such key"}
    for number in range(1, task.retries + 1):
        run = SimpleNamespace(try_number=cleared + number, max_tries=cleared + task.retries)
        task.on_retry_callback[0]({**refused, "ti": run})
    (told,) = (tmp_path / "told").read_text().splitlines()
    assert json.loads(told)["text"] == "watch_small: watch-1: access: no such key"
    delays = [
        min(task.retry_delay * task.retry_exponential_backoff ** min(number, 9), task.max_retry_delay)
        for number in range(task.retries)
    ]
    assert delays[0] < timedelta(minutes=1)
    assert timedelta(hours=20) < sum(delays, timedelta()) < timedelta(hours=26)
    assert dag.get_task("remember").retries < task.retries


@pytest.mark.parametrize(("how", "kind"), [("fail", "PbgOperator"), ("ask", "ApprovalGateOperator")])
def test_every_gate_treats_refusal_by_the_spec(graphs, how, kind):
    dag = bag_of(graphs, small={"gates": {"on_failure": how}}).dags["reembed_small"]
    gates = [dag.get_task(name) for name in ("prepare.validate", "prepare.partition", "release.gate")]
    assert {type(task).__name__ for task in gates} == {kind}


def test_few_common_edges_can_ask_alone(graphs):
    dag = bag_of(graphs, small={"gates": {"on_few_common_edges": "ask"}}).dags["reembed_small"]
    kinds = [type(dag.get_task(name)).__name__ for name in ("prepare.validate", "prepare.partition", "release.gate")]
    assert kinds == ["PbgOperator", "PbgOperator", "ApprovalGateOperator"]


def test_watch_that_could_never_finish_is_refused(graphs):
    lying = {"snapshots": {"location": "/data/{snapshot}.parquet"}, "nights": {"watch": {}}}
    assert "use complete: settled" in bag_of(graphs, small=lying).dags["broken_small"].description


def test_missing_notifier_breaks_its_graph_only(graphs):
    notify = {"notify": [{"use": "no_such_package.Notifier"}]}
    bag = bag_of(graphs, small={"nights": notify}, other={})
    assert "module no_such_package is not installed" in bag.dags["broken_small"].description
    assert "reembed_other" in bag.dags


def test_parsing_with_everything_is_quick_and_light(graphs):
    bag_of(graphs, small={"nights": ALL, "gates": {"on_failure": "ask"}})
    seconds, heavy = parse(graphs)
    assert heavy == []
    assert seconds < 1.0


def active_assets(bag):
    """Return the active assets and the scheduler's warnings about these DAGs.

    Active are those whose tasks the scheduler lets run.
    """
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models.asset import AssetActive
    from airflow.models.dagwarning import DagWarning
    from airflow.utils.session import create_session
    from sqlalchemy import select

    store_dags(bag)
    with create_session() as session:
        SchedulerJobRunner._update_asset_orphanage(SchedulerJobRunner, session=session)
    with create_session() as session:
        warnings = select(DagWarning.message).where(DagWarning.dag_id.in_(bag.dags))
        return set(session.scalars(select(AssetActive.name))), list(session.scalars(warnings))


def test_two_graphs_of_same_snapshots_are_active(graphs):
    active, warnings = active_assets(bag_of(graphs, one={"nights": {"watch": {}}}, two={"nights": {"watch": {}}}))
    assert {"one_edges", "two_edges", "one_production", "two_production"} <= active
    assert warnings == []


def test_exports_below_one_place_are_all_active(graphs):
    exports = [{"format": name, "destination": f"s3://vectors/{{snapshot}}/{name}"} for name in ("parquet", "npy")]
    active, warnings = active_assets(bag_of(graphs, shop={"exports": exports}, forum={"exports": exports}))
    assert {f"{graph}_production_{name}" for graph in ("shop", "forum") for name in ("parquet", "npy")} <= active
    assert warnings == []


def test_scheduler_computes_deadlines_with_the_plugin(graphs):
    from airflow.models import DagRun
    from airflow.serialization.decoders import decode_deadline_reference
    from airflow.serialization.encoders import encode_deadline_reference
    from airflow.utils.session import create_session

    bag = bag_of(graphs, late={"nights": ALL})
    store_dags(bag)
    stored = json.loads(json.dumps(encode_deadline_reference(PublishedBy("02:45", "Europe/Berlin"))))
    reference = decode_deadline_reference(stored)
    due = datetime(2026, 10, 25, 1, 15, tzinfo=UTC)  # in the second of two hours with the same times
    found = {}
    with create_session() as session:
        for kind in ("scheduled", "asset_triggered", "backfill"):
            session.add(DagRun(dag_id="nightly_late", run_id=kind, run_type=kind, run_after=due))
            session.flush()
            found[kind] = reference.evaluate_with(
                session=session, interval=timedelta(0), dag_id="nightly_late", run_id=kind
            )
        session.rollback()
    expected = datetime(2026, 10, 25, 1, 45, tzinfo=UTC)
    assert found == {"scheduled": expected, "asset_triggered": expected, "backfill": None}
