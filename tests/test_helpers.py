"""Helpers of tests, in modules that are no tests themselves."""

from __future__ import annotations

import ast
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def imported(source):
    """Return the dotted names that a module imports, within functions too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def is_of_tests(name):
    """Return whether a dotted name is that of a module of tests."""
    path = REPOSITORY / name.replace(".", "/")
    return path.name.startswith("test_") and path.with_suffix(".py").is_file()


def test_module_of_tests_is_recognized_however_imported():
    sources = ["import tests.test_cli", "from tests import test_cli", "def f():\n    from tests.test_cli import x"]
    assert all(any(map(is_of_tests, imported(source))) for source in sources)
    assert not any(map(is_of_tests, imported("from tests.waiting import wait_until")))


def test_module_of_tests_is_imported_by_none():
    modules = [path for folder in ("tests", "benchmarks", "examples") for path in (REPOSITORY / folder).rglob("*.py")]
    assert len(modules) > 100
    guilty = {
        str(path.relative_to(REPOSITORY)): names
        for path in modules
        if (names := [*filter(is_of_tests, imported(path.read_text(encoding="utf-8")))])
    }
    assert guilty == {}, "move what is shared to a module beside the tests, or to conftest.py"


HEAVY = {
    "deltalake",
    "fastapi",
    "grimp",
    "kubernetes",
    "opentelemetry",
    "pandas",
    "pbg_operators.plugin.app",
    "playwright",
    "pyiceberg",
    "uvicorn",
}
"""Packages that few tests need and that together take a quarter of the time of collecting all."""


def imported_at_once(source):
    """Return what a module imports when it is imported itself."""
    statements = [each for each in ast.parse(source).body if isinstance(each, ast.Import | ast.ImportFrom)]
    return {*imported("\n".join(map(ast.unparse, statements)))}


def test_heavy_package_is_imported_where_it_is_used():
    assert imported_at_once("import pandas as pd") & HEAVY == {"pandas"}
    assert imported_at_once("def f():\n    import pandas as pd") == set()
    modules = [path for folder in ("tests", "benchmarks", "examples") for path in (REPOSITORY / folder).rglob("*.py")]
    guilty = {
        str(path.relative_to(REPOSITORY)): found
        for path in modules
        if (found := {name for name in imported_at_once(path.read_text()) if {name, name.partition(".")[0]} & HEAVY})
    }
    assert guilty == {}, "import it in the function or fixture that needs it: each run of tests imports the module"
