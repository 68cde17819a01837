"""A folder of specs as DAGs."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

import pbg_operators
from pbg_operators.graphs import build_dags, graphs_folder
from pbg_tasks.errors import ConfigError
from tests.operators.specs import small_spec


def write(folder, name, spec):
    (folder / name).write_text(spec if isinstance(spec, str) else yaml.safe_dump(spec))


def test_each_spec_makes_its_dags(tmp_path):
    write(tmp_path, "one.yaml", small_spec(tmp_path, "first"))
    write(tmp_path, "two.yaml", small_spec(tmp_path, "second"))
    write(tmp_path, "notes.txt", "not a spec")
    assert [dag.dag_id for dag in build_dags(tmp_path)] == [
        "reembed_first",
        "drill_first",
        "reembed_second",
        "drill_second",
    ]


def test_a_broken_spec_shows_its_error_and_hides_no_other(tmp_path):
    write(tmp_path, "a.yaml", small_spec(tmp_path, "first") | {"chanel": "x"})
    write(tmp_path, "b.yaml", "graph: [unclosed")
    write(tmp_path, "c.yaml", small_spec(tmp_path, "third"))
    write(tmp_path, "d.yaml", small_spec(tmp_path, "fourth") | {"snapshots": {"location": "s3://{snapshot}/x"}})
    unknown, unreadable, good, _, nowhere = build_dags(tmp_path)
    assert good.dag_id == "reembed_third"
    assert unknown.dag_id == "broken_a"
    assert "broken" in unknown.tags
    assert str(tmp_path / "a.yaml") in unknown.description
    assert "did you mean 'channel'?" in unknown.doc_md
    assert unreadable.dag_id == "broken_b"
    assert nowhere.dag_id == "broken_d"
    assert "'s3://' is no place" in nowhere.description


def test_two_specs_of_one_graph_are_told_apart(tmp_path):
    write(tmp_path, "one.yaml", small_spec(tmp_path, "same"))
    write(tmp_path, "two.yaml", small_spec(tmp_path, "same"))
    first, _, second = build_dags(tmp_path)
    assert first.dag_id == "reembed_same"
    assert second.dag_id == "broken_two"
    assert str(tmp_path / "one.yaml") in second.description


def test_the_folder_is_taken_from_the_environment_then_the_config(tmp_path, monkeypatch):
    environment, config, default = (tmp_path / name for name in ("environment", "config", "default"))
    for folder in (environment, config, default):
        folder.mkdir()
    monkeypatch.delenv("PBG_GRAPHS", raising=False)
    assert graphs_folder(default) == default
    monkeypatch.setenv("AIRFLOW__PBG__GRAPHS_FOLDER", str(config))
    assert graphs_folder(default) == config
    monkeypatch.setenv("PBG_GRAPHS", str(environment))
    assert graphs_folder(default) == environment
    monkeypatch.setenv("PBG_GRAPHS", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="missing: no such folder"):
        graphs_folder(default)


def test_folder_that_nothing_names_is_refused(monkeypatch):
    monkeypatch.delenv("PBG_GRAPHS", raising=False)
    with pytest.raises(ConfigError, match="no folder of graph specs is named; set PBG_GRAPHS"):
        pbg_operators.build_dags()


def test_dags_of_package_are_by_id(tmp_path, monkeypatch):
    monkeypatch.delenv("PBG_GRAPHS", raising=False)
    write(tmp_path, "one.yaml", small_spec(tmp_path, "first"))
    dags = pbg_operators.build_dags(tmp_path / ".." / tmp_path.name)
    assert {name: dag.dag_id for name, dag in dags.items()} == {
        "reembed_first": "reembed_first",
        "drill_first": "drill_first",
    }
    monkeypatch.setenv("PBG_GRAPHS", str(tmp_path))
    assert set(pbg_operators.build_dags()) == set(dags)


def test_package_alone_imports_no_airflow():
    code = "import sys, pbg_operators; print('airflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
