"""The tiers of tests."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

from tests.rotation import stories
from tests.tiers import LIMIT, ROOT, Measurement, is_left_out, slow_files


def report(name, duration, *marks):
    """Return pytest's report of a phase of a test."""
    return SimpleNamespace(nodeid=f"tests/{name}::test_x", duration=duration, keywords=dict.fromkeys(marks, 1))


def test_slow_files_exist():
    assert [path for path in slow_files() if not path.is_file()] == [], "remove them from tests/slow.txt"


def test_slow_file_is_not_collected_in_fast_run():
    command = [sys.executable, "-m", "pytest", "--fast", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "tests/report"], cwd=ROOT.parent, capture_output=True, text=True, check=True, timeout=120
    )
    assert "test_numbers.py" in done.stdout
    assert "test_browser.py" not in done.stdout


def test_rotated_tests_come_in_turn_or_by_name():
    trend, together = "tests/tasks/test_trend.py", "tests/report/test_browser.py"
    every = collected("--every", trend, "tests/report")
    days = [collected(trend, "tests/report", PBG_ROTATION=str(day)) for day in range(3)]
    assert set.union(*days) == every
    assert all(day < every for day in days)
    assert [any(name.startswith(together) for name in day) for day in days].count(True) == 1
    named = min(every - days[0])
    assert collected(named, PBG_ROTATION="0") == {named}
    (other, *_) = (day for day, found in enumerate(days) if not any(name.startswith(together) for name in found))
    assert collected(together, PBG_ROTATION=str(other)) == {name for name in every if name.startswith(together)}


def test_stories_exist():
    assert [name for name in stories() if not (ROOT / name).is_file()] == [], "remove them from tests/stories.txt"


def collected(*arguments, **environment):
    """Return the names of the tests that a run would do."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    surroundings = os.environ | environment
    done = subprocess.run(
        command, cwd=ROOT.parent, env=surroundings, capture_output=True, text=True, check=True, timeout=120
    )
    return {line for line in done.stdout.splitlines() if "::" in line}


def test_folder_of_slow_files_is_left_out():
    folder = ROOT / "interop"
    files = frozenset(folder.rglob("test_*.py"))
    assert is_left_out(folder, files)
    assert not is_left_out(folder, files - {min(files)})


def test_measurement_lists_long_and_real_files(tmp_path):
    listing = tmp_path / "slow.txt"
    listing.write_text("test_cli.py\ntest_gone.py\nconfig/test_schema.py\n")
    measured = Measurement(listing)
    for each in (
        report("config/test_schema.py", LIMIT / 2),
        report("train/test_loop.py", LIMIT / 2),
        report("train/test_loop.py", LIMIT),
        report("storage/test_s3.py", 0.1, "s3"),
    ):
        measured.pytest_runtest_logreport(each)
    measured.pytest_sessionfinish()
    assert listing.read_text() == "storage/test_s3.py\ntest_cli.py\ntrain/test_loop.py\n"
