"""Documents for developers fit the code: links, modules, rooms, diagrams, targets, versions."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
DOCUMENTS = [
    *(REPOSITORY / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "README.md")),
    *sorted((REPOSITORY / "docs" / "dev").rglob("*.md")),
]
PACKAGE = REPOSITORY / "pbg_tasks"
ROOTS = [REPOSITORY, REPOSITORY / "tests" / "publish", PACKAGE, PACKAGE / "training" / "ranks"]
ROOTS += [folder for folder in PACKAGE.iterdir() if folder.is_dir()]
LAYERS = next(each for each in PYPROJECT["tool"]["importlinter"]["contracts"] if each["type"] == "layers")["layers"]
ROOMS = [room.strip() for layer in LAYERS for room in layer.split("|")]


def script(name):
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_of_document_lead_to_files(document):
    targets = re.findall(r"\]\(([^)\s]+)\)", document.read_text())
    local = [target.partition("#")[0] for target in targets if "://" not in target and not target.startswith("#")]
    assert [target for target in local if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_modules_of_document_exist(document):
    """Names start at the repository, the package or a room."""
    named = re.findall(r"`((?:[\w.]+/)*[\w-]+\.(?:py|cpp|inc|dot|toml))`", document.read_text())
    without_example = set(named) - {"rotations.py"}
    assert [name for name in sorted(without_example) if not any((root / name).exists() for root in ROOTS)] == []


def test_module_above_400_lines_gives_its_reason():
    folders = ("pbg_tasks", "operators", "dags", "tests", "benchmarks", "examples", ".ci")
    sources = {path: path.read_text() for folder in folders for path in (REPOSITORY / folder).rglob("*.py")}
    large = {path: text[:1500].lower() for path, text in sources.items() if text.count("\n") > 400}
    assert len(large) > 10
    reason = re.compile(r"longer\s+than\s+other|over\s+400\s+lines|although\s+it\s+is\s+long")
    assert [str(path.relative_to(REPOSITORY)) for path, top in large.items() if not reason.search(top)] == []


def test_untyped_dictionaries_are_where_decision_allows():
    table = (REPOSITORY / "docs/dev/decisions/014-typed-json.md").read_text()
    allowed = {
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(.*?)`", row)
    }
    roots = ((PACKAGE, PACKAGE), (REPOSITORY / "operators", REPOSITORY))
    found = {
        path.relative_to(root).as_posix()
        for folder, root in roots
        for path in folder.rglob("*.py")
        if re.search(r"\b(dict|Mapping)\[str, Any\]", path.read_text())
    }
    assert found == allowed


def test_architecture_lists_each_room_in_order():
    text = (REPOSITORY / "ARCHITECTURE.md").read_text()
    table = [name for row in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", text, re.MULTILINE) for name in row.split(", ")]
    assert [name.strip("`") for name in table] == ROOMS


def test_diagram_of_rooms_has_each_row():
    source = (REPOSITORY / "docs" / "dev" / "diagrams" / "rooms.dot").read_text()
    rows = [re.sub(r":[^|\\]*", "", label) for label in re.findall(r'\[label="([^"]+)"\]', source)][2:]
    assert [sorted(row.replace(" ", "").split("|")) for row in rows] == [
        sorted(layer.replace(" ", "").split("|")) for layer in LAYERS
    ]


def test_diagrams_are_drawn_from_present_sources():
    assert script("diagrams").outdated() == []


def test_changed_diagram_is_outdated(tmp_path, monkeypatch):
    diagrams = script("diagrams")
    monkeypatch.setattr(diagrams, "FOLDER", tmp_path)
    source = tmp_path / "a.dot"
    source.write_text("digraph a {}")
    assert diagrams.outdated() == ["a"]
    source.with_suffix(".svg").write_text(f"<svg/>\n{diagrams.mark(source)}")
    assert diagrams.outdated() == []
    source.write_text("digraph a { b }")
    assert diagrams.outdated() == ["a"]


def test_help_lists_every_target():
    text = (REPOSITORY / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split()
    listed = subprocess.run(
        ["/usr/bin/env", "make", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert [target for target in targets if not re.search(rf"\bmake {target}\b", listed.stdout)] == []


def test_fallback_version_is_in_change_log():
    fallback = PYPROJECT["tool"]["setuptools_scm"]["fallback_version"].removesuffix(".dev0")
    assert f" {fallback}" in (REPOSITORY / "CHANGELOG.md").read_text()


def test_workflow_runs_what_a_change_must_pass():
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    steps = workflow["jobs"]["ci"]["steps"]
    assert steps[-1] == {"run": ".ci/run"}
    assert all(step.keys() == {"run"} for step in steps), "no action, which could move"


def test_hooks_run_tools_of_the_environment():
    config = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    assert {repository["repo"] for repository in config["repos"]} == {"local"}
    assert all(hook["entry"].startswith(".venv/bin/") and hook["language"] == "system" for hook in hooks)
    assert (REPOSITORY / ".ci" / "language.py").exists()
