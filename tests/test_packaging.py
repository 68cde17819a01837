"""Names in wheel and sdist, and an Airflow with the wheel."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import tomllib
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path
from types import SimpleNamespace

import markdown
import pytest

from examples.data.archives import unpack
from tests.operators.specs import spec_file

REPOSITORY = Path(__file__).resolve().parents[1]
VERSION = "1.2.3.dev4+g5e07396.d20261126"  # as between releases, with its local part
DIST_INFO = f"pbg_tasks-{VERSION}.dist-info"
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
TEAM = {
    "operators/__init__.py": "",
    "operators/my_op.py": """
        from airflow.sdk import BaseOperator

        class MyOperator(BaseOperator):
            pass
        """,
    "team.py": """
        from airflow.sdk import DAG
        from operators.my_op import MyOperator

        with DAG("team"):
            MyOperator(task_id="task")
        """,
}
PARSE = """
import json, pathlib, sys
from airflow.dag_processing.dagbag import BundleDagBag

bag = BundleDagBag(sys.argv[1], bundle_path=pathlib.Path(sys.argv[1]), bundle_name="dags-folder")
print(json.dumps([sorted(bag.dags), bag.import_errors]))
"""


def build(kind, tree, target, **variables):
    """Build without the native library, which takes half a minute."""
    environment = {**os.environ, "CC": "false", "CXX": "false", **variables}
    command = [sys.executable, "-c", BUILD, f"build_{kind}", str(target)]
    subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True, timeout=300)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Sdist of a checkout, and wheel of what the sdist holds."""
    folder = tmp_path_factory.mktemp("built")
    left_out = shutil.ignore_patterns(".*", "__pycache__", "*.so", "*.egg-info", "build", "dist")
    shutil.copytree(REPOSITORY, folder / "checkout", ignore=left_out)
    build("sdist", folder / "checkout", folder, SETUPTOOLS_SCM_PRETEND_VERSION=VERSION)
    (sdist,) = folder.glob("*.tar.gz")
    unpack(sdist, folder)
    build("wheel", folder / sdist.name.removesuffix(".tar.gz"), folder)
    (wheel,) = folder.glob("*.whl")
    return SimpleNamespace(sdist=sdist, wheel=wheel)


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """Folder of packages with the wheel in it."""
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(built.wheel) as archive:
        archive.extractall(site)  # noqa: S202 - of our own build
    return site


@pytest.fixture
def team(tmp_path, installed):
    """DAG folder of a team whose Airflow has the wheel."""
    for name, source in TEAM.items():
        path = tmp_path / "dags" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    (tmp_path / "graphs").mkdir()
    spec_file(tmp_path / "graphs", tmp_path, "small")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PBG_"))}
    settings = {
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }

    def run(*arguments, path=()):
        environment = inherited | settings | {"PYTHONPATH": os.pathsep.join(map(str, [*path, installed]))}
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done

    return SimpleNamespace(run=run, dags=tmp_path / "dags", graphs=tmp_path / "graphs")


def test_wheel_installs_two_packages(built):
    with zipfile.ZipFile(built.wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == {"pbg_tasks", "pbg_operators", DIST_INFO}
    assert {"pbg_tasks/native/native.cpp", "pbg_operators/plugin/pages.py", "pbg_operators/py.typed"} <= set(names)
    assert [name for name in names if name.startswith("pbg_tasks/report/templates/")]


def test_wheel_serves_every_python_of_its_platform(built):
    assert re.fullmatch(rf"pbg_tasks-{re.escape(VERSION)}-py3-none-linux_\w+\.whl", built.wheel.name)
    with zipfile.ZipFile(built.wheel) as archive:
        tags = archive.read(f"{DIST_INFO}/WHEEL").decode()
        facts = archive.read(f"{DIST_INFO}/METADATA").decode()
    assert re.findall(r"^Tag: (\w+-\w+)-", tags, re.MULTILINE) == ["py3-none"]
    assert "\nDescription-Content-Type: text/markdown\n" in facts
    assert "\nProject-URL: PyTorch-BigGraph, https://" in facts


def test_editable_build_leaves_no_library_of_other_sources(built, tmp_path):
    """Without a compiler there is none."""
    shutil.copytree(built.sdist.parent / "checkout", tmp_path / "checkout")
    left = tmp_path / "checkout" / "pbg_tasks" / "native" / "_native.abi3.so"
    left.write_bytes(b"of an earlier version")
    build("editable", tmp_path / "checkout", tmp_path)
    assert not left.exists()


def test_wheel_has_nothing_of_an_earlier_build(built, tmp_path):
    """Such as a module that was removed since."""
    shutil.copytree(built.sdist.parent / "checkout", tmp_path / "checkout")
    platform = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    earlier = tmp_path / "checkout" / "build" / f"lib.{platform}" / "pbg_tasks"
    (earlier / "native").mkdir(parents=True)
    for name in ("removed.py", "native/_native.abi3.so"):
        (earlier / name).write_text("")
    build("wheel", tmp_path / "checkout", tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not {"pbg_tasks/removed.py", "pbg_tasks/native/_native.abi3.so"} & set(archive.namelist())


def test_text_for_index_leads_nowhere_it_cannot(built):
    with zipfile.ZipFile(built.wheel) as archive:
        text = archive.read(f"{DIST_INFO}/METADATA").decode().partition("\n\n")[2]
    shown = markdown.markdown(text, extensions=["tables", "fenced_code"])
    assert re.findall(r'<img|(?:src|href)="(?!https?://)', shown) == []
    headings = re.compile(r"^#.*$", re.MULTILINE)
    assert headings.findall(text) == headings.findall((REPOSITORY / "README.md").read_text())
    assert "a graph of your own in ten minutes" in text  # of a link whose target is left out


def test_tree_without_readme_has_facts_of_a_wheel(tmp_path):
    for name in ("setup.py", "pyproject.toml", "LICENSE"):
        shutil.copy(REPOSITORY / name, tmp_path)
    code = BUILD.replace("getattr(build_meta, sys.argv[1])", "build_meta.prepare_metadata_for_build_wheel")
    (tmp_path / "facts").mkdir()
    subprocess.run([sys.executable, "-c", code, "", "facts"], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    (facts,) = tmp_path.glob("facts/*.dist-info/METADATA")
    assert facts.read_text().endswith("\n\nThis was built from a tree without README.md.\n")


def test_wheel_has_every_module_of_checkout(built):
    with zipfile.ZipFile(built.wheel) as archive:
        packed = {name for name in archive.namelist() if name.endswith(".py")}
    roots = {"pbg_tasks": REPOSITORY, "pbg_operators": REPOSITORY / "operators"}
    modules = {str(path.relative_to(root)) for name, root in roots.items() for path in (root / name).rglob("*.py")}
    assert packed == modules


def test_sdist_holds_sources_alone(built):
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    made = {"PKG-INFO", "pbg_tasks.egg-info", "setup.cfg"}
    files = {"LICENSE", "MANIFEST.in", "constraints.txt", "README.md", "pyproject.toml", "setup.py"}
    assert {name.partition("/")[0] for name in names} - {""} == {"pbg_tasks", "operators"} | files | made
    assert {name.split("/")[1] for name in names if name.startswith("operators/")} == {"pbg_operators"}


def version_of(tree):
    found = subprocess.run(
        [sys.executable, "-m", "setuptools_scm"], cwd=tree, check=True, capture_output=True, text=True, timeout=60
    )
    return found.stdout.strip()


def test_version_comes_from_tag_or_fallback(tmp_path):
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    fallback = project["tool"]["setuptools_scm"]["fallback_version"]
    (tmp_path / "pyproject.toml").write_text((REPOSITORY / "pyproject.toml").read_text())
    assert version_of(tmp_path) == fallback  # as where an image is built
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "one"]):
        subprocess.run([*git, *command], check=True, timeout=60)
    assert version_of(tmp_path).startswith(fallback.removesuffix("dev0") + "dev1+g")  # a clone without tags
    subprocess.run([*git, "tag", "--annotate", "v7.1.0", "--message", "pbg-tasks 7.1.0"], check=True, timeout=60)
    assert version_of(tmp_path) == "7.1.0"
    (tmp_path / "more").write_text("")
    for command in (["add", "."], ["commit", "--quiet", "--message", "two"]):
        subprocess.run([*git, *command], check=True, timeout=60)
    assert re.fullmatch(r"7\.1\.1\.dev1\+g[0-9a-f]+", version_of(tmp_path))


def test_installed_version_is_printed(installed, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "pbg_tasks", "--version"]
    printed = subprocess.check_output(command, cwd=tmp_path, env=environment, text=True, timeout=60)
    assert printed == f"pbg {VERSION}\n"


def test_constraints_are_versions_of_locks():
    """Run ``make constraints.txt`` after a lock has changed."""
    locks = (REPOSITORY / "docker" / f"{name}.lock" for name in ("airflow", "train"))
    locked = {found for lock in locks for found in re.findall(r"^[a-z0-9._-]+==[^ ]+", lock.read_text(), re.MULTILINE)}
    listed = (REPOSITORY / "constraints.txt").read_text().split()
    assert listed == sorted(locked)
    names = [each.partition("==")[0] for each in listed]
    assert len(names) == len(set(names)), "the locks disagree"
    assert {"apache-airflow", "apache-airflow-providers-cncf-kubernetes", "duckdb", "s3fs"} <= set(names)
    assert "torch" not in names


def test_entry_points_of_wheel_name_installed_packages(installed):
    (metadata,) = installed.glob("*.dist-info")
    points = PathDistribution(metadata).entry_points
    assert {point.module.partition(".")[0] for point in points} == {"pbg_tasks", "pbg_operators"}
    assert {point.group for point in points} == {"console_scripts", "airflow.plugins", "apache_airflow_provider"}


@pytest.mark.airflow
def test_team_imports_operators_of_its_own(team):
    team.run("-m", "pbg_tasks", "dag-file", team.dags, "--graphs", team.graphs)
    dags, errors = json.loads(team.run("-c", PARSE, team.dags).stdout.splitlines()[-1])
    assert errors == {}
    assert dags == ["drill_small", "reembed_small", "team"]


@pytest.mark.airflow
def test_airflow_starts_with_dag_folder_on_path(team):
    """The plugins are loaded from the wheel, whatever packages the folder has."""
    done = team.run("-m", "airflow", "version", path=[team.dags])
    assert "error" not in (done.stdout + done.stderr).lower()
    listed = team.run("-m", "airflow", "plugins", "--output", "json", path=[team.dags]).stdout
    plugins = {plugin["name"]: plugin["source"] for plugin in json.loads(listed[listed.index("[") :])}
    assert "pbg_operators.plugin:PbgPlugin" in plugins["pbg"]
