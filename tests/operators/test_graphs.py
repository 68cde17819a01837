"""A folder of specs as DAGs."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest
import yaml
from airflow.sdk.definitions._internal.dag_parsing_context import _airflow_parsing_context_manager
from airflow.serialization.serialized_objects import DagSerialization

import pbg_operators
from pbg_operators.graphs import build_dags, graphs_place
from pbg_operators.internals import DagRunType
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


def test_spec_with_another_ending_is_warned_of(tmp_path):
    write(tmp_path, "one.yml", small_spec(tmp_path, "first"))
    with pytest.warns(UserWarning, match=r"one\.yml: makes no DAG, because graph specs end with \.yaml; rename it"):
        assert build_dags(tmp_path) == []


def test_broken_spec_shows_error_and_hides_none(tmp_path):
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


def test_broken_specs_of_like_names_are_all_shown(tmp_path):
    for name in ("a b.yaml", "a!b.yaml", "a_b.yaml"):
        write(tmp_path, name, small_spec(tmp_path, "first") | {"chanel": "x"})
    broken = build_dags(tmp_path)
    assert len({dag.dag_id for dag in broken}) == len(broken)
    for name, dag in zip(("a b.yaml", "a!b.yaml", "a_b.yaml"), broken, strict=True):
        assert str(tmp_path / name) in dag.description
        assert [each.dag_id for each in build_dags(tmp_path / name)] == [dag.dag_id]


def test_wait_without_end_hides_no_other_graph(tmp_path):
    write(tmp_path, "a.yaml", small_spec(tmp_path, "first") | {"nights": {"patience_hours": float("inf")}})
    write(tmp_path, "b.yaml", small_spec(tmp_path, "second"))
    broken, good, _ = build_dags(tmp_path)
    assert (broken.dag_id, good.dag_id) == ("broken_a", "reembed_second")
    assert "nights.patience_hours: Input should be a finite number" in broken.description


def test_two_specs_of_one_graph_are_distinguished(tmp_path):
    write(tmp_path, "one.yaml", small_spec(tmp_path, "same"))
    write(tmp_path, "two.yaml", small_spec(tmp_path, "same"))
    first, _, second = build_dags(tmp_path)
    assert first.dag_id == "reembed_same"
    assert second.dag_id == "broken_two"
    assert str(tmp_path / "one.yaml") in second.description


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        ({"graph": "a", "channel": "b_c"}, {"graph": "a_b", "channel": "c"}, "a_b_c"),
        ({"graph": "z"}, {"graph": "a", "channel": "edges"}, "a_edges"),
    ],
)
def test_assets_of_one_name_break_one_graph(tmp_path, first, second, name):
    for file, changes in (("one", first), ("two", second), ("three", {"graph": "free"})):
        write(tmp_path, f"{file}.yaml", small_spec(tmp_path, changes["graph"]) | changes)
    dags = {dag.dag_id: dag for dag in build_dags(tmp_path)}
    assert f"its Airflow asset {name!r} would be " in dags["broken_two"].description
    assert {f"reembed_{first['graph']}", "reembed_free"} <= {*dags}
    alone = [dag.dag_id for name in ("one", "two") for dag in build_dags(tmp_path / f"{name}.yaml")]
    assert alone == [f"reembed_{first['graph']}", f"drill_{first['graph']}", "broken_two"]


def test_folder_is_that_of_environment_then_config(tmp_path, monkeypatch):
    environment, config, default = (tmp_path / name for name in ("environment", "config", "default"))
    for folder in (environment, config, default):
        folder.mkdir()
    monkeypatch.delenv("PBG_GRAPHS", raising=False)
    assert graphs_place(default) == default
    monkeypatch.setenv("AIRFLOW__PBG__GRAPHS_FOLDER", str(config))
    assert graphs_place(default) == config
    monkeypatch.setenv("PBG_GRAPHS", str(environment))
    assert graphs_place(default) == environment
    monkeypatch.setenv("PBG_GRAPHS", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="missing: no such folder"):
        graphs_place(default)


def test_synchronised_spec_keeps_its_path(tmp_path):
    """git-sync moves a link, and removes the old commit's folder."""
    (tmp_path / "commit").mkdir()
    (tmp_path / "repo").symlink_to(tmp_path / "commit")
    write(tmp_path / "commit", "one.yaml", small_spec(tmp_path, "first"))
    night, drill = build_dags(tmp_path / "repo")
    path = str(tmp_path / "repo" / "one.yaml")
    assert (night.get_task("prepare.plan").spec, drill.tasks[0].arguments) == (path, [path])


def test_missing_folder_setting_is_refused(monkeypatch):
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


def test_file_of_one_spec_makes_its_dags_only(tmp_path, monkeypatch):
    monkeypatch.setenv("PBG_GRAPHS", str(tmp_path / "missing"))
    for name in ("first", "second"):
        write(tmp_path, f"{name}.yaml", small_spec(tmp_path, name))
    assert list(pbg_operators.build_dags(tmp_path / "second.yaml")) == ["reembed_second", "drill_second"]
    with pytest.raises(ConfigError, match=r"gone\.yaml: no such graph spec; remove its DAG file"):
        pbg_operators.build_dags(tmp_path / "gone.yaml")


def test_later_namesake_alone_is_broken(tmp_path):
    for name in ("one", "two"):
        write(tmp_path, f"{name}.yaml", small_spec(tmp_path, "same"))
    write(tmp_path, "three.yaml", "graph: [same")
    assert [dag.dag_id for dag in build_dags(tmp_path / "one.yaml")] == ["reembed_same", "drill_same"]
    (broken,) = build_dags(tmp_path / "two.yaml")
    assert broken.dag_id == "broken_two"
    assert str(tmp_path / "one.yaml") in broken.description


@pytest.mark.parametrize(
    ("needed", "built"),
    [("reembed_second", "reembed_second drill_second"), ("drill_second", "reembed_second drill_second")],
)
def test_process_of_task_builds_its_graph_only(tmp_path, in_task_of, needed, built):
    for name in ("first", "second", "third"):
        write(tmp_path, f"{name}.yaml", small_spec(tmp_path, name))
    in_task_of(needed)
    assert [dag.dag_id for dag in build_dags(tmp_path)] == built.split()


def test_task_of_a_broken_spec_finds_its_dag(tmp_path, in_task_of):
    write(tmp_path, "a.yaml", "graph: [unclosed")
    write(tmp_path, "b.yaml", small_spec(tmp_path, "second"))
    in_task_of("broken_a")
    assert "broken_a" in [dag.dag_id for dag in build_dags(tmp_path)]


def test_task_runs_the_first_of_two_namesakes(tmp_path, in_task_of):
    """The DAG processor does the same: the second one is broken."""
    write(tmp_path, "one.yaml", small_spec(tmp_path, "same") | {"channel": "first"})
    write(tmp_path, "two.yaml", small_spec(tmp_path, "same") | {"channel": "second"})
    in_task_of("reembed_same")
    dags = {dag.dag_id: dag for dag in build_dags(tmp_path)}
    assert "first" in dags["reembed_same"].params.get_param("publish").description
    assert "broken_two" in dags


@pytest.fixture
def in_task_of():
    """Enter the context in which Airflow's task runner parses DAG files."""
    with ExitStack() as stack:
        yield lambda dag_id: stack.enter_context(_airflow_parsing_context_manager(dag_id, "task"))


def test_stored_dags_of_a_graph_are_small(tmp_path):
    """Airflow reads them from its database at each scheduling decision."""
    nights = {"calendar": {"cron": "0 3 * * *", "key_format": "%Y-%m-%d"}, "collect": {}}
    write(tmp_path, "one.yaml", small_spec(tmp_path, "first") | {"nights": nights})
    stored = [json.dumps(DagSerialization.to_dict(dag)) for dag in build_dags(tmp_path)]
    assert len(stored) == 4
    assert sum(map(len, stored)) <= 40_000


@pytest.mark.parametrize("run_type", [DagRunType.SCHEDULED, DagRunType.BACKFILL_JOB])
def test_ids_of_calendar_runs_have_snapshot(tmp_path, run_type):
    """Airflow's list of runs shows ids, and hides partition keys at first."""
    nights = {"calendar": {"cron": "0 3 * * *", "key_format": "%Y-%m-%d"}}
    write(tmp_path, "one.yaml", small_spec(tmp_path, "first") | {"nights": nights})
    (dag,) = (each for each in build_dags(tmp_path) if each.dag_id == "nightly_first")
    timetable = DagSerialization.from_dict(DagSerialization.to_dict(dag)).timetable
    run_after = datetime(2026, 11, 21, 3, tzinfo=UTC)
    run_id = timetable.generate_run_id(
        run_type=run_type, run_after=run_after, data_interval=None, partition_key="2026-11-20"
    )
    assert "__2026-11-20__" in run_id


def test_package_alone_imports_no_airflow():
    code = "import sys, pbg_operators; print('airflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
