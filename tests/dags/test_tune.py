"""The DAG of a search, parsed and run by Airflow."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pbg_operators.reembed import build_dags_of
from pbg_operators.task import PbgOperator
from tests.dags.in_process import run_here, stored_dag
from tests.dags.parsed import stored
from tests.operators.specs import spec_file
from tests.tasks.conftest import ring

TUNE = {"space": {"model.lr": [0.1, 1e30]}, "halving": {"eta": 2, "rungs": 2}}


def dags_of(tmp_path, tune, **keys):
    return {dag.dag_id: dag for dag in build_dags_of(spec_file(tmp_path, tmp_path, "g", tune=tune, **keys))}


def test_only_graph_with_search_has_dag(tmp_path):
    assert "tune_g" not in dags_of(tmp_path, None)
    dag = dags_of(tmp_path, TUNE)["tune_g"]
    assert dag.schedule is None
    order = [task.task_id for task in dag.topological_sort()]
    rungs = [f"rung_{rung}.{name}" for rung in (0, 1) for name in ("tune_select", "tune_trial")]
    assert order == ["tune_start", "tune_prepare", *rungs, "tune_finish", "report"]
    assert set(stored(dag).task_ids) == set(order)


def test_mapped_tasks_have_settings_of_spec(tmp_path):
    airflow = {"heavy": {"execution_timeout": "02:00:00"}, "tasks": {"tune_trial": {"retries": 7, "pool": "gpu"}}}
    dag = dags_of(tmp_path, TUNE | {"parallel": 3}, airflow=airflow)["tune_g"]
    trial = dag.get_task("rung_1.tune_trial")
    assert (trial.retries, trial.pool, trial.max_active_tis_per_dagrun) == (7, "gpu", 3)
    assert trial.execution_timeout == timedelta(hours=2)
    assert dag.get_task("rung_0.tune_select").execution_timeout == timedelta(hours=1)
    assert dag.get_task("tune_start").retries == 2


def test_wrong_space_breaks_search_only(tmp_path):
    dags = dags_of(tmp_path, {"space": {"model.lrr": [1, 2]}})
    assert set(dags) == {"reembed_g", "drill_g", "tune_g"}
    assert "tune.space.model.lrr: 1: unknown key" in dags["tune_g"].description
    assert [task.task_id for task in dags["tune_g"].tasks] == ["read_spec"]


@pytest.fixture
def searching(tmp_path, monkeypatch, scratch):
    """The DAG in Airflow's database, of a graph with a snapshot."""

    (tmp_path / "graphs").mkdir()
    monkeypatch.setenv("PBG_GRAPHS", str(tmp_path / "graphs"))
    rows = ["lhs\trel\trhs", *(f"{lhs}\tlikes\t{rhs}" for lhs, _, rhs in ring(60))]
    (tmp_path / "d1.tsv").write_text("\n".join(rows) + "\n")
    sections = {"tune": TUNE, "split": {"valid": 0.2, "test": 0.1}}
    sections["snapshots"] = {"location": f"{tmp_path}/{{snapshot}}.tsv", "format": "tsv"}
    spec_file(tmp_path / "graphs", tmp_path, "searching", **sections)
    return stored_dag("tune_searching")


@pytest.mark.rotated(3)
def test_search_runs_in_airflow(searching, tmp_path, monkeypatch):
    """A diverged candidate loses, and the other one goes on."""
    monkeypatch.setattr(PbgOperator, "_run", run_here)
    run = searching.test(run_conf={"snapshot": "d1"})
    states = {(each.task_id, each.map_index): each.state for each in run.get_task_instances()}
    assert {*states.values(), run.state} == {"success"}
    assert {key for key in states if key[0].endswith("tune_trial")} == {
        ("rung_0.tune_trial", 0),
        ("rung_0.tune_trial", 1),
        ("rung_1.tune_trial", 0),
    }
    (patch,) = tmp_path.glob("store/searching/runs/*/tune/*/best.yaml")
    assert "model.lr: 0.1" in patch.read_text()
    assert list(tmp_path.glob("store/searching/runs/*/report/search-*.html"))
    assert not list((tmp_path / "scratch").rglob("*.h5"))
