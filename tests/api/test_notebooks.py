"""The notebooks of examples/, executed cell by cell.

A small runner takes the place of Jupyter, which the tests do not install: the cells run in this process, which has
torch already, one after the other; a line that begins with ``!pbg`` calls the command; the last expression of a cell is
shown by its ``_repr_html_``. The code that is run is our own.
"""

from __future__ import annotations

import ast
import json
import shlex
import sys
from pathlib import Path

import pytest

from pbg_tasks.cli import main

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
SHOWN = {
    "own_graph": ["12 of 12 capitals are found", "<td>2: borders, capital_of", "<svg"],
    "nights_and_drift": ["2 of channel production", "20 users are new", "MRR, filtered", "<svg", "error: quality_gate"],
    "from_pbg": ["checkpoint_version.txt", "complex_diagonal", "60 of 60 first answers are right"],
}


class Runner:
    """Executor of one notebook's cells, which share their names."""

    def __init__(self, patch):
        self.patch, self.names = patch, {"__name__": "__main__"}

    def run(self, source, tags):
        if source.startswith("!"):
            self.command(shlex.split(source[1:]), expected="refused" in tags)
            return
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), self.names)  # noqa: S102 - see above
        if last is not None:
            show(eval(compile(ast.Expression(last.value), "<cell>", "eval"), self.names))  # noqa: S307 - same

    def command(self, words, *, expected):
        assert words[0] == "pbg"
        self.patch.setattr(sys, "argv", words)
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = ended.code or 0
        assert (status != 0) == expected, words


def show(value):
    html = getattr(value, "_repr_html_", None)
    if value is not None:
        print(repr(value) if html is None else html())  # noqa: T201 - what a notebook shows


def run_all(path, monkeypatch):
    runner = Runner(monkeypatch)
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            runner.run("".join(cell["source"]), cell["metadata"].get("tags", []))


@pytest.fixture
def folder(tmp_path, monkeypatch, scratch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("folder")
def test_nights_run_again_show_their_own_releases(monkeypatch, capsys):
    (path,) = (each for each in NOTEBOOKS if each.stem == "nights_and_drift")
    for number in (2, 4):
        run_all(path, monkeypatch)
        assert f"{number} of channel production" in "".join(capsys.readouterr())


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_from_top_to_bottom(path, monkeypatch, capsys):
    run_all(path, monkeypatch)
    shown = "".join(capsys.readouterr())
    for text in SHOWN[path.stem]:
        assert text in shown


def test_notebooks_are_stored_without_outputs():
    assert {path.stem for path in NOTEBOOKS} == set(SHOWN)
    for path in NOTEBOOKS:
        document = json.loads(path.read_text())
        assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
        ids = [cell["id"] for cell in document["cells"]]
        assert len(set(ids)) == len(ids)
        for cell in document["cells"]:
            assert cell.get("outputs", []) == []
            assert cell.get("execution_count") is None
