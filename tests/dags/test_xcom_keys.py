"""Keys of results that templates of the DAG read."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2
import pytest
import yaml

from pbg_operators.reembed import build_dags_of
from pbg_operators.xcom import pulled, pulled_if_any
from pbg_tasks.config.results import SHAPES, BucketResult, EvalResult, PlanResult, has_key
from tests.operators.specs import small_spec

STORES = Path(__file__).resolve().parents[1] / "fixtures" / "documents"
RESULTS = sorted(path for path in STORES.glob("*/runs/*/results") if (path / "publish.json").is_file())
READ = {"plan.run", "plan.snapshot", "publish.published", "eval.filtered", "eval.filtered.mrr", "bucket.edges"}
READ |= {"bucket.edges.total"}


class Part:
    """Part of a stored result, which refuses unknown keys."""

    def __init__(self, shape, values, read, path=()):
        self.shape, self.values, self.read, self.path = shape, values, read, path

    def __getitem__(self, key):
        path = (*self.path, key)
        assert has_key(self.shape, *path), f"{self.shape.__name__} has no key {'.'.join(path)!r}"
        self.read.add(".".join((self.shape.TASK, *path)))
        value = self.values[key]
        return Part(self.shape, value, self.read, path) if isinstance(value, dict) else value

    def get(self, key, default=None):
        assert has_key(self.shape, *self.path, key), f"{self.shape.__name__} has no key {key!r}"
        return self[key] if key in self.values else default


class TaskInstance:
    """A double of Airflow's, which pulls the results of a stored run."""

    def __init__(self, results):
        self.results, self.read = results, set()

    def xcom_pull(self, task_ids):
        name = task_ids.rpartition(".")[2]
        if name not in SHAPES:
            assert task_ids == "make_scratch"
            return "/scratch"
        return Part(SHAPES[name], json.loads((self.results / f"{name}.json").read_text()), self.read)


def texts(value):
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from texts(each)


@pytest.fixture
def templates(tmp_path):
    export = {"name": "table", "format": "parquet", "destination": str(tmp_path / "{run}")}
    spec = tmp_path / "small.yaml"
    spec.write_text(yaml.safe_dump(small_spec(tmp_path, "small") | {"exports": [export]}))
    (dag, *_) = build_dags_of(spec)
    fields = (getattr(task, name) for task in dag.tasks for name in task.template_fields if hasattr(task, name))
    return {text for field in fields for text in texts(field) if "xcom_pull" in text}


def render(template, ti):
    return jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False).from_string(template).render(ti=ti)  # noqa: S701 - as Airflow renders


@pytest.mark.parametrize("results", RESULTS, ids=lambda path: path.parent.name)
def test_every_template_reads_keys_of_models(templates, results):
    ti = TaskInstance(results)
    rendered = {render(template, ti) for template in templates}
    assert ti.read == READ
    plan = json.loads((results / "plan.json").read_text())
    bucket = json.loads((results / "bucket.json").read_text())
    evaluated = json.loads((results / "eval.json").read_text())
    figures = {json.dumps(each) for each in (plan["snapshot"], bucket["edges"]["total"], evaluated["filtered"]["mrr"])}
    assert rendered == {"/scratch", plan["run"], "true", *figures}


@pytest.mark.parametrize("wrong", ["['ran']", "['snapshot']['day']", ".get('ran')"])
def test_template_with_unknown_key_fails(wrong):
    results = TaskInstance(RESULTS[0])
    with pytest.raises((AssertionError, jinja2.UndefinedError)):
        render(f"{{{{ ti.xcom_pull(task_ids='prepare.plan'){wrong} }}}}", results)


def test_expression_of_unknown_key_is_refused():
    with pytest.raises(KeyError, match=r"the result of 'bucket' has no key 'edges\.all'"):
        pulled("prepare", BucketResult, "edges", "all")
    with pytest.raises(KeyError, match=r"filtered\.hits7"):
        pulled("release", EvalResult, "filtered", "hits7")
    with pytest.raises(KeyError, match="ran"):
        pulled_if_any("prepare", PlanResult, "ran", "''")
