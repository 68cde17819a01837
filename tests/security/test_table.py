"""The table of threats in docs/dev/threats.md.

Each row has its tests, and they exist.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "docs" / "dev" / "threats.md", REPOSITORY / "docs" / "security.md"]
TEXT = PAGES[0].read_text("utf-8")
HEAD = ["threat", "what holds", "what does not", "test"]


def rows():
    """Return the cells of each row of the table."""
    (section,) = re.findall(r"^## Table\n(.*)", TEXT, re.MULTILINE | re.DOTALL)
    lines = [line for line in section.splitlines() if line.startswith("|")]
    head, _, *found = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert head == HEAD
    return found


@functools.cache
def functions(path):
    """Return the tests of a file, and which are always skippable.

    Those of classes are named ``Class::test``.
    """
    tree = ast.parse((REPOSITORY / path).read_text("utf-8"))
    classes = [(f"{node.name}::", node.body) for node in tree.body if isinstance(node, ast.ClassDef)]
    named = [(prefix, each) for prefix, body in [("", tree.body), *classes] for each in body]
    return {
        f"{prefix}{each.name}": [ast.unparse(decorator) for decorator in each.decorator_list]
        for prefix, each in named
        if isinstance(each, ast.FunctionDef)
    }


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_row_names_tests_that_exist(row):
    assert len(row) == len(HEAD)
    assert all(row), "a cell is empty"
    named = re.findall(r"`([^`]+)`", row[-1])
    assert named
    assert re.sub(r"`[^`]+`", "", row[-1]).strip() == ""
    for test in named:
        path, _, name = test.partition("::")
        assert name.rpartition("::")[2].startswith("test_")
        assert name in functions(path), test
        assert not [mark for mark in functions(path)[name] if "skip" in mark or "xfail" in mark], test


def test_table_covers_the_promised_threats():
    listed = " ".join(row[0] for row in rows())
    assert len(rows()) >= 18
    assert len({row[0] for row in rows()}) == len(rows())
    for subject in ("config", "HDF5", "Markup", "Paths", "SQL", "rights", "connection", "Keys", "socket", "Frames"):
        assert subject in listed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_document_lead_somewhere(page):
    text = page.read_text("utf-8")
    heads = {
        re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in re.findall(r"^#+ (.*)", text, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        assert not path or (page.parent / path).exists(), target
        assert path or anchor in heads, target
