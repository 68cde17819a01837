"""Notes of refusals, in Airflow's real database."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.airflow_home import use_private_airflow

use_private_airflow()

from sqlalchemy import select  # noqa: E402 - Airflow's home is chosen first

from pbg_operators.internals import DagRun, SerializedDagModel, TaskInstance, create_session  # noqa: E402
from pbg_operators.plugin import listener  # noqa: E402
from tests.operators.plugin.site import DAG, serving  # noqa: E402

REASON = "quality gate: MRR 0.1000 is 80% of 0.1250"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("graphs")) as site:
        yield site


def end(run_id, failed, note=None):
    """Fail a task and its run, as the scheduler does.

    Returns:
        The notes of the run and of the tasks that have one.
    """
    of_run = (DagRun.dag_id == DAG, DagRun.run_id == run_id)
    with create_session(scoped=False) as session:
        run = session.scalars(select(DagRun).where(*of_run)).one()
        run.dag = session.scalars(select(SerializedDagModel).where(SerializedDagModel.dag_id == DAG)).first().dag
        run.partition_key = "d1"
        listener.on_dag_run_running(dag_run=run, msg="started")
        task = run.get_task_instance(failed, session=session)
        task.state, task.try_number = "failed", 2
        task.note = note or task.note
        session.flush()
        listener.on_dag_run_failed(dag_run=run, msg="task_failure")
    with create_session(scoped=False) as session:
        run = session.scalars(select(DagRun).where(*of_run)).one()
        tasks = session.scalars(select(TaskInstance).where(TaskInstance.dag_id == DAG, TaskInstance.run_id == run_id))
        return run.note, {task.task_id: task.note for task in tasks if task.note}


def store(site, run_id, task, value, key="refused"):
    path = f"dags/{DAG}/dagRuns/{run_id}/taskInstances/{task}/xcomEntries"
    site.post(path, {"key": key, "value": value, "map_index": -1})


def test_refusal_becomes_note_of_task(site):
    run_id = site.planned({})
    store(site, run_id, "release.gate", REASON)
    assert end(run_id, "release.gate") == (
        "Snapshot d1, refused by release.gate",
        {"release.gate": f"Refused in try 2: {REASON}"},
    )


def test_later_refusal_replaces_the_note(site):
    run_id = site.planned({})
    store(site, run_id, "release.gate", "r" * 2000)
    _, notes = end(run_id, "release.gate", note="Refused in try 1: for another reason")
    assert notes["release.gate"] == f"Refused in try 2: {'r' * 2000}"[:1000]  # Airflow's column takes no more


def test_names_in_note_are_no_markdown(site):
    run_id = site.planned({})
    store(site, run_id, "release.gate", "no edges of ![x](https://x.example/p), _r_")
    shown = r"Refused in try 2: no edges of \!\[x\](https://x.example/p), \_r\_"
    assert end(run_id, "release.gate")[1] == {"release.gate": shown}


@pytest.mark.parametrize("note", ["we know", "Refused rightly: a supplier left"])
def test_users_note_of_task_stays(site, note):
    run_id = site.planned({})
    store(site, run_id, "release.gate", REASON)
    assert end(run_id, "release.gate", note=note)[1] == {"release.gate": note}


def test_broken_night_has_no_note_of_refusal(site):
    run_id = site.planned({})
    store(site, run_id, "release.gate", "connection lost", key="error")
    assert end(run_id, "release.gate") == ("Snapshot d1", {})


def test_refusal_that_was_approved_leaves_no_note(site):
    run_id = site.planned({})
    store(site, run_id, "release.gate", REASON)  # the task went on after a person's answer; another one failed
    assert end(run_id, "train.train") == ("Snapshot d1", {})


@pytest.mark.parametrize("value", [7, None, ["a list"]])
def test_value_that_is_no_text_is_no_refusal(site, value):
    run_id = site.planned({})
    store(site, run_id, "release.gate", value)
    assert end(run_id, "release.gate")[1] == {}


def test_run_that_begins_again_has_no_old_refusal(site):
    run = SimpleNamespace(dag_id=DAG, dag=None, partition_key="d1", conf=None, run_id="r", note=None)
    with create_session(scoped=False) as session:
        run.dag = session.scalars(select(SerializedDagModel).where(SerializedDagModel.dag_id == DAG)).first().dag
    for before, after in (("Snapshot d1, refused by release.gate", "Snapshot d1"), ("Snapshot d1!", "Snapshot d1!")):
        run.note = before
        listener.on_dag_run_running(dag_run=run, msg="started")
        assert run.note == after


def test_task_of_another_package_gets_no_note(site):
    run_id = site.planned({})
    store(site, run_id, "release.gate", REASON)
    with create_session(scoped=False) as session:
        run = session.scalars(select(DagRun).where(DagRun.dag_id == DAG, DagRun.run_id == run_id)).one()
        run.dag = SimpleNamespace(task_dict={"release.gate": SimpleNamespace(_task_module="shop.tasks")})
        run.get_task_instance("release.gate", session=session).state = "failed"
        session.flush()
        listener.on_dag_run_failed(dag_run=run, msg="task_failure")
        assert run.get_task_instance("release.gate", session=session).note is None


def test_fault_of_listener_is_a_warning(site, monkeypatch, caplog):
    monkeypatch.setattr("pbg_operators.plugin.attempts.refusals", lambda *_: 1 / 0)
    run_id = site.planned({})
    assert end(run_id, "release.gate")[1] == {}
    assert "has no notes of refusals: division by zero" in caplog.text
