"""Partition keys and notes of runs, by the DAG that Airflow stores."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from pbg_operators.plan import PlanOperator
from pbg_operators.plugin import listener
from pbg_operators.tune import TuneStartOperator
from tests.dags.parsed import stored

SPEC = "/graphs/g.yaml"
PLANS = {
    "form": {"form": True},
    "plain": {"form": False},
    "named": {"form": True, "snapshot": "{{ ds }}"},
    "empty": {"form": True, "snapshot": ""},
}


def begun(dag_id, *tasks, key=None, conf=None, note=None):
    """Begin a run of a stored DAG as the scheduler does."""
    with DAG(dag_id, schedule=None) as dag:
        EmptyOperator(task_id="own")
        for task in tasks:
            if task == "search":
                TuneStartOperator(task_id="tune_start", spec=SPEC)
            else:
                PlanOperator(task_id=f"{task}.prepare.plan", spec=SPEC, **PLANS[task])
    run = SimpleNamespace(dag_id=dag_id, dag=stored(dag), partition_key=key, conf=conf, run_id="r", note=note)
    listener.on_dag_run_running(dag_run=run, msg="started")
    return run.partition_key, run.note


@pytest.mark.parametrize(
    ("key", "conf", "found"),
    [
        (None, {"snapshot": "d1"}, "d1"),
        ("d2", {"snapshot": "d1"}, "d2"),
        (None, {"snapshot": 3}, None),
        (None, {"snapshot": "d" * 251}, None),
        (None, None, None),
    ],
)
@pytest.mark.parametrize(("dag_id", "task"), [("reembed_g", "form"), ("shop_graph", "form"), ("tune_g", "search")])
def test_run_with_form_names_its_snapshot(dag_id, task, key, conf, found):
    assert begun(dag_id, task, key=key, conf=conf) == (found, found and f"Snapshot {found}")


@pytest.mark.parametrize("tasks", [["plain"], ["plain", "form"]])
def test_run_without_form_names_key_only(tasks):
    assert begun("shop", *tasks, key="d1") == ("d1", "Snapshot d1")
    assert begun("shop", *tasks, conf={"snapshot": "of the user's own"}) == (None, None)


@pytest.mark.parametrize("tasks", [[], ["named"], ["empty"]])
def test_run_whose_key_is_no_snapshot_stays(tasks):
    assert begun("reembed_g", *tasks, key="region", conf={"snapshot": "d1"}) == ("region", None)
    assert begun("reembed_g", *tasks, conf={"snapshot": "d1"}) == (None, None)


def test_note_of_user_stays():
    assert begun("shop", "form", key="d1", note="by hand") == ("d1", "by hand")


def test_run_of_removed_dag_stays(caplog):
    run = SimpleNamespace(dag_id="gone", dag=None, partition_key="d1", conf=None, run_id="r", note=None)
    listener.on_dag_run_running(dag_run=run, msg="started")
    assert (run.note, caplog.records) == (None, [])
