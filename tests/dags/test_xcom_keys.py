"""Keys of results that templates of the DAG read."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import jinja2
import pytest
from airflow.sdk.definitions.mappedoperator import MappedOperator

from pbg_operators.reembed import build_dags_of
from pbg_operators.xcom import pulled, pulled_answer, pulled_if_any, pulled_or_none
from pbg_tasks.config.airflow import TOGETHER
from pbg_tasks.config.results import SHAPES, BucketResult, EvalResult, PlanResult, StartedAnswer, has_key
from tests.operators.specs import small_spec, spec_file

STORES = Path(__file__).resolve().parents[1] / "fixtures" / "documents"
RESULTS = sorted(path for path in STORES.glob("*/runs/*/results") if (path / "publish.json").is_file())
READ = {"plan.run", "plan.snapshot", "publish.published", "publish.channel"}
READ |= {"eval.filtered", "eval.filtered.mrr", "bucket.edges", "bucket.edges.total"}
READ |= {"tune_start.run", "tune_start.search"}
STARTED = {"run": "s3://bucket/runs/r1", "search": "0123456789ab", "rungs": 2, "candidates": 2}


class Part:
    """Part of a task's result or answer, which refuses unknown keys."""

    def __init__(self, task, shape, values, read, path=()):
        self.task, self.shape, self.values, self.read, self.path = task, shape, values, read, path

    def __getitem__(self, key):
        path = (*self.path, key)
        assert has_key(self.shape, *path), f"{self.shape.__name__} has no key {'.'.join(path)!r}"
        self.read.add(".".join((self.task, *path)))
        value = self.values[key]
        return Part(self.task, self.shape, value, self.read, path) if isinstance(value, dict) else value

    def get(self, key, default=None):
        assert has_key(self.shape, *self.path, key), f"{self.shape.__name__} has no key {key!r}"
        return self[key] if key in self.values else default


class TaskInstance:
    """A double of Airflow's, which pulls the results of a stored run."""

    def __init__(self, results):
        self.results, self.read = results, set()

    def xcom_pull(self, task_ids):
        name = task_ids.rpartition(".")[2]
        if name == "tune_start":
            return Part(name, StartedAnswer, STARTED, self.read)
        if name == "prepare":  # commands of few tasks
            return {"tasks": {task: self.xcom_pull(task) for task in TOGETHER[name]}}
        name = TOGETHER[name][-1] if name in TOGETHER else name
        return Part(name, SHAPES[name], json.loads((self.results / f"{name}.json").read_text()), self.read)


def texts(value):
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from texts(each)


KUBERNETES = {
    "launcher": "kubernetes",
    "kubernetes": {"image": "pbg", "allow_tag": True, "resources": {"cpu": "1", "memory": "1Gi"}},
}
NIGHTS = {"watch": {"complete": "success"}, "calendar": {"cron": "0 2 * * *"}, "collect": {}, "redo": True}


def dags_of(place, root, how, **sections):
    """Make all DAGs of a spec that asks for everything."""
    export = {"name": "table", "format": "parquet", "destination": f"{root}/{{run}}"}
    gates = small_spec(root, "small")["gates"] | {"on_failure": how}
    usual = {"exports": [export], "nights": NIGHTS, "gates": gates}
    return build_dags_of(spec_file(place, root, "small", **usual | sections))


def templates_of(dag):
    fields = [getattr(task, name) for task in dag.tasks for name in task.template_fields if hasattr(task, name)]
    for task in dag.tasks:
        if isinstance(task, MappedOperator):
            given = [task.partial_kwargs, task.expand_input.value]
            fields += [each[name] for each in given for name in task.template_fields if name in each]
    return {text for field in fields for text in texts(field) if "{{" in text or "{%" in text}


PARTS = {
    "exports": [{"name": "table", "format": "parquet", "parts": 2, "destination": "s3://bucket/{run}"}],
    "eval": {"parts": 2},
    "channel": "candidate",
    "promote": {"to": "production"},
    "tune": {"space": {"model.lr": [0.1, 0.2]}, "halving": {"eta": 2, "rungs": 2}},
}
MAPPED = {"eval_part", "table_part", "tune_trial"}


@pytest.fixture(scope="module")
def dags(tmp_path_factory):
    place = tmp_path_factory.mktemp("dags")
    return [
        *dags_of(place, place, "fail"),
        *dags_of(place, "s3://bucket", "ask", launch=KUBERNETES),
        *dags_of(place, "s3://bucket", "fail", **PARTS),
        *dags_of(place, place, "fail", airflow={"few_tasks": True}),
    ]


@pytest.fixture
def templates(dags):
    return {text for dag in dags for text in templates_of(dag) if "xcom_pull" in text}


def render(template, ti, **context):
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)  # noqa: S701 - as Airflow renders
    return environment.from_string(template).render(ti=ti, **context)


def test_every_expression_of_every_dag_renders(dags):
    """Those that read no result read the form."""
    kinds = {"reembed", "nightly", "drill", "watch", "collect", "tune", "redo", "promote"}
    assert {dag.dag_id.partition("_")[0] for dag in dags} == kinds
    mapped = {task.task_id for dag in dags for task in dag.tasks if isinstance(task, MappedOperator)}
    assert {name.rpartition(".")[2] for name in mapped} == MAPPED
    ti, others = TaskInstance(RESULTS[0]), set()
    for dag in dags:
        context = {"dag": dag, "dag_run": SimpleNamespace(partition_key="d1"), "params": dag.params.dump()}
        for template in templates_of(dag):
            rendered = render(template, ti, **context)
            assert "{{" not in rendered
            assert "Undefined" not in rendered
            others |= {template} if "xcom_pull" not in template else set()
    assert others == {"{{ params.get('ranks') or 1 }}"}


@pytest.mark.parametrize("results", RESULTS, ids=lambda path: path.parent.name)
def test_every_template_reads_keys_of_models(templates, results):
    ti = TaskInstance(results)
    rendered = {render(template, ti, dag=SimpleNamespace(dag_id="reembed_small")) for template in templates}
    assert ti.read == READ
    plan = json.loads((results / "plan.json").read_text())
    bucket = json.loads((results / "bucket.json").read_text())
    evaluated = json.loads((results / "eval.json").read_text())
    figures = {json.dumps(each) for each in (plan["snapshot"], bucket["edges"]["total"], evaluated["filtered"]["mrr"])}
    channel = json.dumps(json.loads((results / "publish.json").read_text())["channel"])
    day = plan["snapshot"]
    subjects = {f"reembed_small: {command} refused {day}" for command in ("validate", "partition", "gate")}
    searched = {STARTED["run"], STARTED["search"]}
    assert rendered == {plan["run"], "true", channel, *figures, *subjects, *searched}


@pytest.mark.parametrize("wrong", ["['ran']", "['snapshot']['day']", ".get('ran')"])
def test_template_with_unknown_key_fails(wrong):
    results = TaskInstance(RESULTS[0])
    with pytest.raises((AssertionError, jinja2.UndefinedError)):
        render(f"{{{{ ti.xcom_pull(task_ids='prepare.plan'){wrong} }}}}", results)


@pytest.mark.parametrize(("within", "task"), [(None, "bucket"), ("prepare", "prepare")])
def test_facts_lack_tasks_marked_as_success(dags, within, task):
    """A release is no less one without such a figure."""
    ti = SimpleNamespace(xcom_pull=lambda **_: None)
    facts = [each.facts for dag in dags for each in dag.tasks if hasattr(each, "facts")]
    edges = pulled_or_none("prepare", BucketResult, "edges", "total", within=within)
    assert f"'prepare.{task}'" in edges
    assert f"{{{{ {edges} | tojson }}}}" in {each["edges"] for each in facts}
    assert {render(each[name], ti) for each in facts for name in {"edges", "mrr"} & {*each}} == {"null"}


def test_expression_of_unknown_key_is_refused():
    with pytest.raises(KeyError, match=r"the result of 'bucket' has no key 'edges\.all'"):
        pulled_or_none("prepare", BucketResult, "edges", "all")
    with pytest.raises(KeyError, match=r"the result of 'bucket' has no key 'edges\.all'"):
        pulled("prepare", BucketResult, "edges", "all")
    with pytest.raises(KeyError, match=r"filtered\.hits7"):
        pulled("release", EvalResult, "filtered", "hits7")
    with pytest.raises(KeyError, match="the answer of 'tune_start' has no key 'rung'"):
        pulled_answer("tune_start", StartedAnswer, "rung")
    with pytest.raises(KeyError, match="ran"):
        pulled_if_any("prepare", PlanResult, "ran", "''")
