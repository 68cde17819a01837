"""From partition key and form to the arguments of ``pbg plan``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException
from airflow.serialization.serialized_objects import DagSerialization

from pbg_operators import build_dag
from pbg_operators.form import FIELDS, trigger_form
from pbg_operators.plan import PlanOperator, plan_arguments
from pbg_operators.plugin import attempts, database
from pbg_operators.reembed import build_dags_of
from pbg_operators.task import ERROR_KEY, REFUSED_KEY
from pbg_tasks.config.loading import load_graph_spec
from tests.operators.specs import spec_file

UNTOUCHED = {**dict.fromkeys(FIELDS), "publish": "auto"}
SPEC = "/graphs/g.yaml"
TICK = datetime(2026, 11, 20, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("key", "form", "arguments"),
    [
        ("day-1", {}, ["--snapshot=day-1"]),
        (None, {"snapshot": "day-2"}, ["--snapshot=day-2"]),
        ("day-1", {"snapshot": "day-1"}, ["--snapshot=day-1"]),
        ("day-1", {"accept_data": "a sale"}, ["--snapshot=day-1", "--accept-data=a sale"]),
        ("day-1", {"ranks": 4}, ["--snapshot=day-1", "--param=launch.ranks=4"]),  # for the forecast; no trial
        (
            None,
            {"snapshot": "d", "epochs": 1, "dimension": 8, "partitions": 4, "engine": "torch"},
            ["--snapshot=d", "--epochs=1", "--dimension=8", "--partitions=4", "--engine=torch", "--no-publish"],
        ),
    ],
)
def test_filled_in_form_field_becomes_an_option(key, form, arguments):
    assert plan_arguments(SPEC, key, UNTOUCHED | form) == [SPEC, *arguments]


@pytest.mark.parametrize(
    ("form", "published"),
    [
        ({}, True),
        ({"accept_data": "a sale"}, True),
        ({"publish": "no"}, False),
        *(({name: 4}, False) for name in ("epochs", "dimension", "partitions", "engine")),
        ({"epochs": 4, "publish": "yes"}, True),
    ],
)
def test_run_with_changed_training_publishes_on_request(form, published):
    arguments = plan_arguments(SPEC, "d1", UNTOUCHED | form)
    assert ("--no-publish" not in arguments) == published
    assert ("--publish" in arguments) == (form.get("publish") == "yes")  # else the command takes a trial for none


def test_run_without_snapshot_fails_with_one_sentence():
    with pytest.raises(AirflowFailException, match=r"^no snapshot: .* partition key, or fill in snapshot"):
        plan_arguments(SPEC, None, UNTOUCHED)


def test_run_with_two_snapshots_fails_with_one_sentence():
    with pytest.raises(AirflowFailException, match=r"^two snapshots: the run is of 'day-1', its form asks for 'day-2'"):
        plan_arguments(SPEC, "day-1", UNTOUCHED | {"snapshot": "day-2"})


@pytest.mark.parametrize(("name", "near"), [("snapshoot", "snapshot"), ("epoch", "epochs"), ("colours", "colour")])
def test_misspelt_name_in_configuration_is_refused(fake_pbg, context, name, near):
    fake_pbg(PLANNED)
    with DAG("d", schedule=None, params={"colour": "red"}):
        task = PlanOperator(task_id="plan", spec=SPEC, store_conn_id=None)
    fields = UNTOUCHED | {"snapshot": "d1", "colour": "red", "ticket": 7}
    context |= {"params": fields | {name: "d1"}}
    with pytest.raises(AirflowFailException, match=f"has '{name}', .* did you mean '{near}'"):
        task.execute(context)
    assert f"did you mean '{near}'" in context["ti"].pushed[ERROR_KEY]
    context |= {"params": fields}
    assert task.execute(context)["run"] == "/store/runs/day-1-abc"


def test_form_lets_plan_judge_the_key(tmp_path):
    """A pattern would be shown in place of the keys there."""
    path = spec_file(tmp_path, tmp_path, "g")
    form = trigger_form(load_graph_spec(path))
    assert list(form) == [*FIELDS]
    for key in ("2026/11/20", "d 1", "../d1"):
        assert form["snapshot"].resolve(key) == key


def test_form_links_to_list_of_snapshots(tmp_path):
    path = spec_file(tmp_path, tmp_path, "g")
    for dag_id in ("reembed_g", "nights_of_mine"):
        field = build_dag(path, dag_id).params.get_param("snapshot")
        assert field.description is None  # else Airflow's form shows no Markdown
        assert f"[Begin a night](/pbg/dags/{dag_id}/begin)" in field.schema["description_md"]


def test_reason_of_failed_plan_is_kept_for_page(fake_pbg, context):
    fake_pbg("print('error: input: d9: no snapshot there; keys there: d2, d1', file=sys.stderr); sys.exit(3)")
    context |= {"params": UNTOUCHED, "dag_run": SimpleNamespace(partition_key="d9", run_type="manual")}
    with pytest.raises(AirflowFailException):
        PlanOperator(task_id="plan", spec=SPEC, store_conn_id=None).execute(context)
    assert context["ti"].pushed[ERROR_KEY].endswith("input: d9: no snapshot there; keys there: d2, d1")
    assert (ERROR_KEY, REFUSED_KEY) == (database.ERROR_KEY, attempts.REFUSED_KEY)


def test_link_leads_to_the_planned_run(fake_pbg, context):
    fake_pbg(PLANNED)
    context |= {"params": UNTOUCHED, "dag_run": SimpleNamespace(partition_key="day-1", run_type="manual")}
    task = PlanOperator(task_id="plan", spec=SPEC, store_conn_id=None)
    assert task.execute(context)["arguments"] == ["plan", SPEC, "--snapshot=day-1", "--json"]
    assert list(context["ti"].pushed.values()) == ["/pbg/dags/reembed_toy/runs/manual__1#lineage"]
    assert task.run_url == "/store/runs/day-1-abc"


def test_params_of_dag_without_form_change_no_night(fake_pbg, context):
    fake_pbg(PLANNED)
    own = {"publish": True, "engine": "postgres", "epochs": 3, "snapshot": "d9"}
    run = SimpleNamespace(partition_key="day-1", run_type="manual")
    context |= {"params": own, "dag_run": run}
    task = PlanOperator(task_id="plan", spec=SPEC, store_conn_id=None, form=False)
    assert task.execute(context)["arguments"] == ["plan", SPEC, "--snapshot=day-1", "--json"]
    run.partition_key = None
    with pytest.raises(AirflowFailException, match="no snapshot"):
        task.execute(context)


@pytest.mark.parametrize("rendered", [None, "", "None", ["d1"], 20261120])
def test_snapshot_that_is_no_text_is_refused(fake_pbg, context, rendered):
    fake_pbg(PLANNED)
    context |= {"params": UNTOUCHED, "dag_run": SimpleNamespace(partition_key="day-1", run_type="manual")}
    task = PlanOperator(task_id="plan", spec=SPEC, store_conn_id=None, snapshot="{{ a result }}")
    task.snapshot = rendered  # as Airflow does before the task runs
    with pytest.raises(AirflowFailException, match="let it give the snapshot's key, a text that is not empty"):
        task.execute(context)


PLANNED = """
print(json.dumps({'task': 'plan', 'run': '/store/runs/day-1-abc', 'seconds': 1, 'arguments': sys.argv[1:]}))
"""
OUT_OF_TURN = "print('error: out_of_turn: snapshot d2 continues that of d1', file=sys.stderr); sys.exit(14)"


def test_night_out_of_turn_is_rescheduled_for_patience(fake_pbg, context):
    fake_pbg(OUT_OF_TURN)
    now = datetime.now(UTC)
    task = PlanOperator(task_id="plan", spec=SPEC, store_conn_id=None, patience=timedelta(hours=2))
    run = SimpleNamespace(partition_key="d2", run_type="manual", start_date=now - timedelta(hours=1))
    context |= {"params": UNTOUCHED, "dag_run": run}
    with pytest.raises(AirflowRescheduleException) as raised:
        task.execute(context)
    assert timedelta(0) < raised.value.reschedule_date - now < timedelta(minutes=5)
    run.start_date = now - timedelta(hours=3)
    with pytest.raises(AirflowFailException, match="snapshot d2 continues that of d1; waited for 2:00:00"):
        task.execute(context)


def test_tasks_before_a_plan_cost_no_patience(fake_pbg, context):
    fake_pbg(OUT_OF_TURN)
    now, first = datetime.now(UTC), [None]
    with DAG("d", schedule=None):
        task = PlanOperator(task_id="plan", spec=SPEC, store_conn_id=None, patience=timedelta(hours=2), snapshot="d2")
        EmptyOperator(task_id="export") >> task
    context |= {"params": UNTOUCHED, "dag_run": SimpleNamespace(run_type="manual", start_date=now - timedelta(hours=5))}
    context["ti"].get_first_reschedule_date = lambda _: first[0]
    for first[0] in (None, now - timedelta(hours=1)):
        with pytest.raises(AirflowRescheduleException):
            task.execute(context)
    first[0] = now - timedelta(hours=3)
    with pytest.raises(AirflowFailException, match="snapshot d2 continues that of d1; waited for 2:00:00"):
        task.execute(context)


@pytest.mark.parametrize("settings", [{}, {"all": {"priority_weight": 3}}])
def test_waiting_nights_leave_slots_to_others(tmp_path, settings):
    """Airflow gives a slot to the task with the greatest weight."""
    path = spec_file(tmp_path, tmp_path, "g", tune={"space": {"model.lr": [0.1, 0.2]}}, airflow=settings)
    stored = [DagSerialization.from_dict(DagSerialization.to_dict(dag)) for dag in build_dags_of(path)]
    night, search = (
        {task.task_id: task.weight_rule.get_weight(SimpleNamespace(task=task)) for task in dag.tasks}
        for dag in stored
        if dag.dag_id in {"reembed_g", "tune_g"}
    )
    plan = night.pop("prepare.plan")
    assert search["rung_0.tune_trial"] < plan <= min(night.values())
    assert plan < night["release.publish"] < night["train.train"]


def test_night_out_of_turn_ends_dags_test(fake_pbg, context):
    fake_pbg(OUT_OF_TURN)
    run = SimpleNamespace(
        partition_key="d2", run_type="manual", start_date=datetime.now(UTC), triggering_user_name="dag_test"
    )
    context |= {"params": UNTOUCHED, "dag_run": run}
    with pytest.raises(AirflowFailException, match="snapshot d2 continues that of d1; `airflow dags test` cannot wait"):
        PlanOperator(task_id="plan", spec=SPEC, store_conn_id=None).execute(context)


@pytest.mark.parametrize(
    ("run_type", "waits"), [("scheduled", True), ("manual", False), ("backfill", False), ("asset_triggered", False)]
)
def test_run_of_calendar_waits_for_missing_snapshot(fake_pbg, context, run_type, waits):
    fake_pbg(PLANNED)
    context |= {
        "params": UNTOUCHED,
        "dag_run": SimpleNamespace(partition_key="day-1", run_type=run_type, run_after=TICK),
    }
    found = PlanOperator(task_id="plan", spec=SPEC, store_conn_id=None).execute(context)
    assert ("--due=2026-11-20T02:00:00+00:00" in found["arguments"]) == waits
