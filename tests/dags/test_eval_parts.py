"""Nights whose evaluation is in mapped parts."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from pbg_operators.reembed import build_dags_of
from pbg_tasks.config import load_graph_spec
from pbg_tasks.errors import ConfigError
from pbg_tasks.storage import open_store
from tests.dags.in_process import states_of_night
from tests.dags.parsed import CHAIN, stored
from tests.operators.specs import spec_file

PARTS = {"eval": {"parts": 3}}
POD = {"image": f"pbg@sha256:{'0' * 64}", "resources": {"cpu": "1", "memory": "2Gi"}}


def night(tmp_path, **keys):
    path = spec_file(tmp_path, "s3://bucket/store", "g", **keys)
    return next(dag for dag in build_dags_of(path) if dag.dag_id == "reembed_g")


def test_parts_are_mapped_before_the_merge(tmp_path):
    airflow = {"heavy": {"execution_timeout": "02:00:00"}, "tasks": {"eval_part": {"retries": 7, "pool": "wide"}}}
    dag = night(tmp_path, airflow=airflow, **PARTS)
    order = [task.task_id for task in dag.topological_sort() if task.task_id != "report"]
    place = CHAIN.index("release.eval")
    assert order == [*CHAIN[:place], "release.eval_part", *CHAIN[place:]]
    part, merge = dag.get_task("release.eval_part"), dag.get_task("release.eval")
    assert (part.retries, part.pool, part.execution_timeout) == (7, "wide", timedelta(hours=2))
    assert [option for _, option in part.expand_input.value["arguments"]] == ["--part=1/3", "--part=2/3", "--part=3/3"]
    assert merge.arguments[1:] == ["--parts=3"]
    assert {arguments[0] for arguments in part.expand_input.value["arguments"]} == {merge.arguments[0]}
    assert set(stored(dag).task_ids) == set(dag.task_ids)


def test_without_parts_the_dag_and_the_spec_stay(tmp_path):
    dag = night(tmp_path)
    assert "release.eval_part" not in dag.task_ids
    assert len(dag.get_task("release.eval").arguments) == 1
    assert "parts" not in load_graph_spec(tmp_path / "g.yaml").eval.model_dump()


def test_parts_have_their_pods(tmp_path):
    part = night(tmp_path, launch={"tasks": {"eval_part": POD}}, **PARTS).get_task("release.eval_part")
    assert part.partial_kwargs["kubernetes"].resources["memory"] == "2Gi"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"eval": {"parts": 0}}, "eval.parts"),
        (PARTS | {"airflow": {"few_tasks": True}}, "eval.parts is 3, yet with airflow.few_tasks"),
        ({"launch": {"tasks": {"eval_part": POD}}}, "'eval_part', which is a task with eval.parts above 1 only"),
    ],
)
def test_contradictions_of_parts_are_refused(tmp_path, keys, words):
    path = spec_file(tmp_path, "s3://bucket/store", "g", **keys)
    with pytest.raises(ConfigError, match=words):
        load_graph_spec(path)


@pytest.mark.rotated(3)
def test_night_in_parts_runs_in_airflow(tmp_path, monkeypatch):
    states = states_of_night(tmp_path, monkeypatch, "eval_parts", eval={"parts": 2}, split={"valid": 0.1, "test": 0.1})
    assert states["release.eval_part", 0] == states["release.eval_part", 1] == states["release.eval", -1] == "success"
    assert states["release.publish", -1] == "success"
    (folder,) = (tmp_path / "store" / "eval_parts" / "runs").iterdir()
    store = open_store(str(folder))
    for number in (1, 2):
        assert json.loads(store.get(f"results/eval-{number}-of-2.json").data)["part"] == f"{number}/2"
