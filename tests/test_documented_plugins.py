"""Packages of the documentation, installed apart and used by commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
import yaml
from pyarrow import orc

from tests.model.plugins import documented, documented_parts
from tests.tasks.conftest import MODEL, SMALL_GRAPH, ring
from tests.tasks.exchanges import model as exported_model

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = (REPOSITORY / "docs" / "plugins.md").read_text()
MODULES = documented_parts()
KINDS = {"sources", "exchange", "stores", "comparators", "sinks"}
MOST_LINES = 30
"""Largest number of lines of an example, without imports and empty ones."""


def install(tree, target):
    """Build and install a package, offline, into a folder of its own."""
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", *options, "--target", str(target), str(tree)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Give a folder with both packages and their metadata."""
    root = tmp_path_factory.mktemp("plugins")
    ours, rotations = root / "ours", root / "rotations"
    ours.mkdir()
    for name, source in MODULES.items():
        (ours / name).write_text(source)
    (ours / "pyproject.toml").write_text(re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1])
    name, source, _ = documented()
    rotations.mkdir()
    (rotations / f"{name}.py").write_text(source)
    page = (REPOSITORY / "docs" / "extending.md").read_text()
    (rotations / "pyproject.toml").write_text(re.search(r"```toml\n(.*?)```", page, re.DOTALL)[1])
    for tree in (ours, rotations):
        install(tree, root / "site")
    return root / "site"


@pytest.fixture
def pbg(site, tmp_path):
    """Give a function that runs a command where the packages are installed."""
    path = os.pathsep.join([str(site), str(REPOSITORY), str(REPOSITORY / "operators")])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "SHARES": str(tmp_path / "shares"),
        "PBG_SCRATCH": str(tmp_path / "scratch"),
    }

    def run(*arguments):
        command = [sys.executable, "-m", "pbg_tasks", *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)

    return run


@pytest.mark.parametrize("name", MODULES)
def test_example_of_page_is_short(name):
    assert lines(MODULES[name]) <= MOST_LINES


def test_example_of_parts_of_models_is_short():
    assert lines(documented()[1]) <= MOST_LINES


def test_page_has_part_of_each_kind():
    points = tomllib.loads(re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1])["project"]["entry-points"]
    assert set(points) == {f"pbg_tasks.{kind}" for kind in KINDS}
    named = {target.partition(":")[0] for group in points.values() for target in group.values()}
    assert {f"{name}.py" for name in named} == set(MODULES)


def lines(source):
    """Count the lines of an example, without imports and empty ones."""
    return len([line for line in source.splitlines() if line.strip() and not line.startswith(("import ", "from "))])


def test_installed_packages_serve_a_night(pbg, tmp_path):
    folder = tmp_path / "edges" / "d1"
    folder.mkdir(parents=True)
    rows = [dict(zip(("lhs", "rel", "rhs"), map(str, row), strict=True)) for row in ring(40)]
    orc.write_table(pa.Table.from_pylist(rows), folder / "edges.orc")
    four = {"options": {"stripes": 4}}
    relations = [{**relation, "operator": "rotation"} for relation in MODEL["relations"]]
    model = {**MODEL, "relations": relations, "comparator": "tanimoto", "loss_fn": "squared_hinge"}
    model |= {"regularizer": "lasso", "regularization_coef": 1e-4}
    spec = tmp_path / "graph.yaml"
    spec.write_text(
        yaml.safe_dump(
            {
                "graph": "toy",
                "store": "share://team/graphs/toy",
                "snapshots": {"location": f"{tmp_path}/edges/{{snapshot}}", "format": "orc", **four},
                "model": model,
                "split": {"valid": 0.02, "test": 0.1},
                "resources": {"memory_gb": 1, "threads": 1},
                "gates": SMALL_GRAPH | {"max_mrr_drop": 1.0},
                "exports": [{"format": "glove", "options": {"digits": 6}}],
            }
        )
    )
    done = pbg("run", spec, "--snapshot", "d1", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["run"].startswith("share://team/graphs/toy/runs/d1-")
    place = summary["exports"]["glove"]
    (manifest,) = (tmp_path / "shares").rglob("exports/glove/*/_manifest.json")
    assert json.loads(manifest.read_text())["measured"] == {"digits": 6}
    back = pbg("import-embeddings", "glove", place, tmp_path / "init", "--json")
    assert back.returncode == 0, back.stderr
    assert json.loads(back.stdout)["types"]["n"]["rows"] == 40
    more = pbg("export", "glove", summary["run"], "share://team/more", "--option", "digits=3", "--json")
    assert json.loads(more.stdout)["measured"] == {"digits": 3}


def test_installed_sink_is_filled_and_served(pbg, tmp_path):
    data = exported_model(tmp_path / "data")
    place = tmp_path / "vectors"
    done = pbg("export", "duck", data.checkpoint, place, "--type", "user", "--json")
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)["measured"]["tables"]["user"]
    assert measured["recall"] == 1.0
    served = json.loads((place / "_pbg" / "pbg" / "current.json").read_text())["tables"]["pbg_user"]
    assert served["table"] == measured["table"]
    with duckdb.connect(f"{place}.duckdb", read_only=True) as database:
        names = database.execute(f"select id from {served['table']} order by row").fetchall()
    assert [name for (name,) in names] == data.names["user"]


def test_contract_of_page_runs_against_store(site, tmp_path):
    (source,) = re.findall(r"```python\n(# test_share.py\n.*?)```", PAGE, re.DOTALL)
    (tmp_path / "test_share.py").write_text(source)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(REPOSITORY)])}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--rootdir={tmp_path}",
        "-c",
        os.devnull,
    ]
    command.append(f"--basetemp={tmp_path}/pt")
    done = subprocess.run(
        [*command, str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 30


def test_uninstalled_parts_are_named(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "operators")])}
    command = [sys.executable, "-m", "pbg_tasks", "export", "glove", str(tmp_path), "share://team/more"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode != 0
    assert "no exchange format is named 'glove'; there are angel, " in done.stderr
