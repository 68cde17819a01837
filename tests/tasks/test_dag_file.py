"""``pbg dag-file`` and ``pbg dag-files``: files written, kept and refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pbg_tasks.errors import AccessError, ConfigError
from pbg_tasks.tasks import dag_file as module
from pbg_tasks.tasks.dag_file import dag_file, write_dag_file, write_dag_files

REPOSITORY = Path(__file__).resolve().parents[2]


def test_file_of_repository_is_as_written():
    assert (REPOSITORY / "dags" / "reembed.py").read_text() == dag_file(Path("../examples/graphs"))


def test_folder_gets_file_of_one_name(tmp_path):
    assert write_dag_file(str(tmp_path)) == {"path": str(tmp_path / "reembed.py"), "written": True}
    assert [path.name for path in tmp_path.iterdir()] == ["reembed.py"]
    assert (tmp_path / "reembed.py").stat().st_mode & 0o777 == 0o644


def test_second_call_leaves_file_unchanged(tmp_path):
    path = tmp_path / "pbg.py"
    write_dag_file(str(path))
    before = path.stat()
    assert write_dag_file(str(path)) == {"path": str(path), "written": False}
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_file_of_another_version_is_replaced(tmp_path, monkeypatch):
    path = tmp_path / "pbg.py"
    with monkeypatch.context() as earlier:
        earlier.setattr(module, "_DEFAULT", "\nfrom pbg_operators import earlier_name\n")
        write_dag_file(str(path))
    assert "earlier_name" in path.read_text()
    assert write_dag_file(str(path))["written"]
    assert path.read_text() == dag_file()


@pytest.mark.parametrize(
    "content",
    [b"", b"print('team')\n", b"\xff\xfe", dag_file().encode() + b"print('added')\n"],
    ids=["empty", "other", "not text", "changed"],
)
def test_other_file_is_replaced_by_force_only(tmp_path, content):
    path = tmp_path / "pbg.py"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"pbg\.py: not a file as `pbg dag-file` wrote it; .*--force"):
        write_dag_file(str(path))
    assert path.read_bytes() == content
    write_dag_file(str(path), force=True)
    assert path.read_text() == dag_file()


@pytest.mark.parametrize("name", ["pbg.txt", "missing/folder", "s3://bucket/dags/pbg.py"])
def test_place_without_dag_files_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=name):
        write_dag_file(name)
    assert list(tmp_path.iterdir()) == []


def test_failed_write_leaves_file_before(tmp_path, monkeypatch):
    path = tmp_path / "pbg.py"
    write_dag_file(str(path))

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(AccessError, match=r"pbg\.py"):
        write_dag_file(str(path), graphs=Path("/graphs"))
    assert path.read_text() == dag_file()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["graphs", "a 'b'", 'a "b"', "a\\b\n{}", "gr\u00e4ph\U0001f600"])
def test_folder_of_graphs_is_relative_to_file(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / name
    (tmp_path / "dags").mkdir()
    for given in (folder, Path(name)):
        write_dag_file("dags", graphs=given)
        assert graphs_of(tmp_path / "dags" / "reembed.py", monkeypatch) == folder


def graphs_of(path, monkeypatch):
    """Run a DAG file and return the folder that it names."""
    import pbg_operators

    named = []
    monkeypatch.setattr(pbg_operators, "build_dags", lambda folder: named.append(folder) or {})
    exec(compile(path.read_text(), path, "exec"), {"__file__": str(path)})  # noqa: S102 - as Airflow does
    return Path(os.path.normpath(named[0]))


def test_command_prints_path_and_needs_no_airflow(tmp_path):
    (tmp_path / "airflow.py").write_text("raise ImportError")
    command = [sys.executable, "-m", "pbg_tasks", "dag-file", str(tmp_path / "pbg.py"), "--json"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(REPOSITORY)))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"path": str(tmp_path / "pbg.py"), "written": True}


def test_file_is_known_again_in_any_locale(tmp_path):
    path = tmp_path / "pbg.py"
    write_dag_file(str(path), graphs=tmp_path / "gr\u00e4ph")
    command = [sys.executable, "-X", "utf8=0", "-m", "pbg_tasks", "dag-file", str(path), "--json"]
    environment = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["written"] is True


@pytest.fixture
def fleet(tmp_path):
    """A folder of two specs and a folder for their DAG files."""
    for name in ("graphs", "dags"):
        (tmp_path / name).mkdir()
    for name in ("one", "two"):
        (tmp_path / "graphs" / f"{name}.yaml").touch()
    return tmp_path / "graphs", tmp_path / "dags"


def test_each_spec_gets_a_file(fleet, monkeypatch):
    graphs, dags = fleet
    assert write_dag_files(graphs, str(dags)) == {
        "folder": str(dags),
        "files": 2,
        "written": ["pbg_graph_one.py", "pbg_graph_two.py"],
        "removed": [],
    }
    assert graphs_of(dags / "pbg_graph_two.py", monkeypatch) == graphs / "two.yaml"
    before = {path: path.stat().st_mtime_ns for path in dags.iterdir()}
    assert write_dag_files(graphs, str(dags))["written"] == []
    assert before == {path: path.stat().st_mtime_ns for path in dags.iterdir()}


def test_file_of_a_lost_spec_is_removed(fleet):
    graphs, dags = fleet
    write_dag_files(graphs, str(dags))
    (dags / "team.py").write_text("print('team')")
    (graphs / "one.yaml").rename(graphs / "three.yaml")
    done = write_dag_files(graphs, str(dags))
    assert (done["written"], done["removed"]) == (["pbg_graph_three.py"], ["pbg_graph_one.py"])
    assert sorted(path.name for path in dags.iterdir()) == ["pbg_graph_three.py", "pbg_graph_two.py", "team.py"]


@pytest.mark.parametrize("name", ["pbg_graph_one.py", "pbg_graph_gone.py"])
def test_changed_file_of_a_spec_stops_everything(fleet, name):
    graphs, dags = fleet
    (dags / name).write_text("print('team')")
    with pytest.raises(ConfigError, match=rf"{name}: not a file as `pbg dag-file` wrote it"):
        write_dag_files(graphs, str(dags))
    assert [path.name for path in dags.iterdir()] == [name]
    write_dag_files(graphs, str(dags), force=True)
    assert sorted(path.name for path in dags.iterdir()) == ["pbg_graph_one.py", "pbg_graph_two.py"]


def test_files_of_another_folder_stay(fleet, tmp_path):
    graphs, dags = fleet
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "three.yaml").touch()
    write_dag_files(graphs, str(dags))
    assert write_dag_files(tmp_path / "more", str(dags))["removed"] == []
    assert write_dag_files(graphs, str(dags))["removed"] == []
    assert sorted(path.stem for path in dags.iterdir()) == ["pbg_graph_one", "pbg_graph_three", "pbg_graph_two"]
    (tmp_path / "more" / "two.yaml").touch()
    before = (dags / "pbg_graph_two.py").read_text()
    with pytest.raises(ConfigError, match=r"pbg_graph_two\.py: makes the DAGs of .*graphs/two\.yaml, another spec of"):
        write_dag_files(tmp_path / "more", str(dags))
    assert (dags / "pbg_graph_two.py").read_text() == before
    assert write_dag_files(tmp_path / "more", str(dags), force=True)["written"] == ["pbg_graph_two.py"]


def test_moved_folder_takes_its_files_over(fleet, tmp_path, monkeypatch):
    graphs, dags = fleet
    write_dag_files(graphs, str(dags))
    graphs.rename(tmp_path / "specs")
    assert len(write_dag_files(tmp_path / "specs", str(dags))["written"]) == 2
    assert graphs_of(dags / "pbg_graph_one.py", monkeypatch) == tmp_path / "specs" / "one.yaml"


def test_empty_folder_removes_files_by_force_only(fleet, tmp_path, monkeypatch):
    graphs, dags = fleet
    monkeypatch.chdir(tmp_path)
    write_dag_files(Path("graphs"), "dags")
    (tmp_path / "empty").mkdir()
    assert write_dag_files(tmp_path / "empty", str(dags))["removed"] == []
    for spec in graphs.iterdir():
        spec.unlink()
    with pytest.raises(ConfigError, match=r"graphs: holds no graph spec .* 2 DAG files .* --force"):
        write_dag_files(graphs, str(dags))
    assert len(list(dags.iterdir())) == 2
    assert len(write_dag_files(graphs, str(dags), force=True)["removed"]) == 2
    assert write_dag_files(graphs, str(dags))["removed"] == []


def test_file_of_all_specs_and_yml_are_reported(fleet, capsys):
    graphs, dags = fleet
    (dags / "graphs").mkdir()
    (graphs / "third.yml").touch()
    write_dag_file(str(dags), graphs=graphs)
    write_dag_file(str(dags / "other.py"), graphs=graphs.parent / "elsewhere")
    write_dag_file(str(dags / "graphs" / "default.py"))
    assert capsys.readouterr().err == ""
    write_dag_files(graphs, str(dags / "graphs"))
    yml, default, beside = capsys.readouterr().err.splitlines()
    assert f"warning: {graphs / 'third.yml'}: gets no DAG file, because graph specs end with .yaml" in yml
    assert f"default.py: where that is the configured folder of graph specs, makes the DAGs of {graphs}" in default
    assert f"reembed.py: makes the DAGs of {graphs} a second time" in beside


def test_missing_folder_below_dags_is_made(fleet):
    graphs, dags = fleet
    made = write_dag_files(graphs, str(dags / "graphs"))
    assert sorted(path.name for path in (dags / "graphs").iterdir()) == sorted(made["written"])


def test_missing_folders_of_a_fleet_are_named(fleet):
    graphs, dags = fleet
    for arguments, message in (
        ((graphs / "none", str(dags)), "none: no such folder of graph specs"),
        ((graphs, str(dags / "none" / "below")), "none/below: no folder, nor is it within one"),
        ((graphs, "s3://bucket/dags"), "s3://bucket/dags: not a local path"),
    ):
        with pytest.raises(ConfigError, match=message):
            write_dag_files(*arguments)
    assert list(dags.iterdir()) == []
