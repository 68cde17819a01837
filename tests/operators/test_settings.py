"""Settings of Airflow's tasks in a graph spec."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from airflow.serialization.serialized_objects import DagSerialization

from pbg_operators.graphs import build_dags
from pbg_operators.reembed import build_dags_of
from pbg_operators.settings import DEFAULTS, LIGHT_TIMEOUT
from pbg_tasks.config.airflow import EXPORTS, HEAVY, LIGHT, TOGETHER
from pbg_tasks.errors import ConfigError
from tests.operators.specs import spec_file

NIGHTS = {
    "calendar": {"cron": "0 3 * * *", "key_format": "%Y-%m-%d"},
    "redo": True,
    "collect": {},
    "watch": {"complete": "settled"},
}
PROMOTE = {"to": "readers", "after_nights": 3}
TUNE = {"space": {"model.lr": [0.1, 0.2]}}


@pytest.fixture
def tasks(tmp_path):
    """Make the tasks of all DAGs of a spec, by id."""

    def build(airflow, **keys):
        usual = {"nights": NIGHTS, "promote": PROMOTE, "tune": TUNE}
        usual["exports"] = [{"format": "npy"}, {"format": "tsv", "name": "text"}]
        path = spec_file(tmp_path, tmp_path, "g", **usual | {"airflow": airflow} | keys)
        return {f"{dag.dag_id}.{task.task_id}": task for dag in build_dags_of(path) for task in dag.tasks}

    return build


def test_every_task_has_a_name_in_the_spec(tasks):
    """A new task of a DAG has to be heavy or light."""
    every, few = (
        {name.rpartition(".")[2] for name in tasks(airflow, **keys) if ".exports." not in name}
        for airflow, keys in (({}, {"eval": {"parts": 2}}), ({"few_tasks": True}, {}))
    )
    assert every == {*HEAVY, *LIGHT} - {EXPORTS, *TOGETHER}
    assert few == {*every, *TOGETHER} - {"eval_part", *(task for inside in TOGETHER.values() for task in inside)}


def test_tasks_have_one_policy_unless_the_spec_differs(tasks):
    for name, task in tasks({}).items():
        if "wait_for_snapshots" not in name:
            assert {key: getattr(task, key) for key in DEFAULTS} == DEFAULTS, name
        light = name.rpartition(".")[2] in {*LIGHT} - {"wait_for_snapshots", "remove_what_nothing_needs"}
        assert task.execution_timeout == (LIGHT_TIMEOUT if light else None), name
        assert (task.pool, task.queue, task.executor) == ("default_pool", "default", None)


def test_narrower_settings_win(tasks):
    found = tasks(
        {
            "all": {"pool": "graphs", "retries": 5, "retry_delay": 60},
            "heavy": {"queue": "big", "execution_timeout": "08:00:00"},
            "light": {"queue": "small", "priority_weight": 3},
            "tasks": {
                "train": {"pool": "gpu", "retries": 0, "executor": "LocalExecutor", "execution_timeout": 86400},
                "exports": {"executor_config": {"key": "value"}},
                "gate": {"execution_timeout": 60},
            },
        }
    )
    train, evaluate, gate = (found[f"nightly_g.{name}"] for name in ("train.train", "release.eval", "release.gate"))
    assert (train.pool, train.queue, train.retries, train.executor) == ("gpu", "big", 0, "LocalExecutor")
    assert train.execution_timeout == timedelta(days=1)
    assert (evaluate.pool, evaluate.queue, evaluate.retries) == ("graphs", "big", 5)
    assert evaluate.execution_timeout == timedelta(hours=8)
    assert (gate.queue, gate.priority_weight, gate.execution_timeout) == ("small", 3, timedelta(minutes=1))
    for name in ("npy", "text"):
        export = found[f"reembed_g.exports.{name}"]
        assert (export.executor_config, export.queue) == ({"key": "value"}, "big")
    assert found["watch_g.remember"].retries == 5
    assert {task.retry_delay for task in found.values()} == {timedelta(minutes=1)}
    assert {task.pool for task in found.values()} == {"graphs", "gpu"}


def test_wide_settings_leave_tries_of_watch(tasks):
    wide = {"all": {"retries": 3, "max_retry_delay": 120}, "light": {"retries": 1}}
    watch = tasks(wide)["watch_g.wait_for_snapshots"]
    assert (watch.retries, watch.max_retry_delay) == (50, timedelta(minutes=30))
    own = {"tasks": {"wait_for_snapshots": {"retries": 9}}}
    assert tasks(wide | own)["watch_g.wait_for_snapshots"].retries == 9
    slow = {"tasks": {"wait_for_snapshots": {"retry_delay": 300}}}
    assert tasks(wide | slow)["watch_g.wait_for_snapshots"].max_retry_delay == timedelta(minutes=30)


def test_long_first_delay_is_not_cut(tasks):
    found = tasks({"all": {"retry_delay": 1200}, "tasks": {"eval": {"retry_delay": "02:00:00"}}})
    longest = {name: found[name].max_retry_delay for name in ("reembed_g.release.eval", "watch_g.wait_for_snapshots")}
    assert list(longest.values()) == [timedelta(hours=2), timedelta(minutes=30)]
    assert found["reembed_g.train.train"].max_retry_delay == timedelta(minutes=20)
    assert found["tune_g.rung_0.tune_trial"].partial_kwargs["max_retry_delay"] == timedelta(minutes=20)


def test_gate_that_asks_users_has_no_time_limit(tasks):
    asking = tasks({}, gates={"on_failure": "ask", "ask_hours": 24})
    assert asking["reembed_g.release.gate"].execution_timeout is None
    assert asking["reembed_g.release.publish"].execution_timeout == LIGHT_TIMEOUT


def test_few_tasks_take_settings_of_their_own(tasks):
    found = tasks({"few_tasks": True, "heavy": {"queue": "big"}, "tasks": {"finish": {"pool": "gpu"}}})
    finish, prepare = found["nightly_g.release.finish"], found["nightly_g.prepare.prepare"]
    assert (finish.pool, finish.queue, prepare.pool, prepare.queue) == ("gpu", "big", "default_pool", "big")


def test_pod_of_a_task_is_stored_by_airflow(tasks):
    pod = {"spec": {"containers": [{"name": "base", "resources": {"requests": {"memory": "8Gi"}}}]}}
    found = tasks({"tasks": {"eval": {"executor_config": {"pod_override": pod}}}})["reembed_g.release.eval"]
    assert found.executor_config["pod_override"].spec.containers[0].resources.requests == {"memory": "8Gi"}
    assert "8Gi" in json.dumps(DagSerialization.to_dict(found.dag))


@pytest.mark.parametrize(
    ("airflow", "message"),
    [
        ({"tasks": {"trian": {"pool": "gpu"}}}, "airflow: tasks names 'trian'; known tasks: plan, validate"),
        ({"tasks": {"finish": {"pool": "gpu"}}}, "'finish', which is a task with few_tasks: true only"),
        (
            {"few_tasks": True, "tasks": {"gate": {"pool": "gpu"}}},
            "'gate', which with few_tasks is part of the task 'finish'",
        ),
        ({"all": {"poool": "gpu"}}, "unknown key 'airflow.all.poool'; did you mean 'pool'?"),
        ({"all": {"retries": -1}}, "airflow.all.retries"),
        ({"all": {"execution_timeout": 0}}, "airflow.all.execution_timeout"),
        ({"all": {"execution_timeout": True}}, "airflow.all.execution_timeout: is true or false, and a duration is"),
        ({"all": {"retry_delay": "01:30"}}, "airflow.all.retry_delay: '01:30' may be hours or minutes; write"),
        (
            {"all": {"max_retry_delay": 10}, "tasks": {"train": {"retry_delay": 1000}}},
            "max_retry_delay of task 'train' is 0:00:10, less than its retry_delay, 0:16:40",
        ),
        (
            {"tasks": {"export": {"pool": "gpu"}}},
            "remove_what_nothing_needs, tune_select, tune_finish; did you mean 'exports'?",
        ),
        (
            {"light": {"executor": "Lokal"}},
            "airflow: executor 'Lokal': [core] executor of this Airflow has LocalExecutor",
        ),
        ({"all": {"executor_config": {"pod_override": {"spec": {"containers": 1}}}}}, "pod_override is no pod"),
    ],
)
def test_wrong_setting_is_named(tasks, airflow, message):
    with pytest.raises(ConfigError, match=r"g\.yaml: ") as error:
        tasks(airflow)
    assert message in str(error.value)


def test_missing_executor_breaks_one_graph_only(tmp_path):
    """Airflow would retire all DAGs of the file."""
    for name, executor in (("a", "NoSuchExecutor"), ("b", "LocalExecutor")):
        spec_file(tmp_path, tmp_path, name, airflow={"all": {"executor": executor}})
    assert [dag.dag_id for dag in build_dags(tmp_path)] == ["broken_a", "reembed_b", "drill_b"]


def test_connection_owner_and_tags_reach_all_dags(tasks):
    found = tasks({"connection": "shop_store", "tags": ["shop"], "all": {"owner": "shop"}})
    mapped = found.pop("tune_g.rung_0.tune_trial").partial_kwargs
    assert (mapped["store_conn_id"], mapped["owner"]) == ("shop_store", "shop")
    assert {task.store_conn_id for task in found.values() if hasattr(task, "store_conn_id")} == {"shop_store"}
    assert {name for name, task in found.items() if not hasattr(task, "store_conn_id")} == {"watch_g.remember"}
    assert {task.owner for task in found.values()} == {"shop"}
    assert all({"shop", "g"} <= task.dag.tags for task in found.values())
