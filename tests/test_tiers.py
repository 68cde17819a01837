"""The tiers of tests."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.rotation import STORY_DAYS, comes_today, of_today, stories, story_comes_today
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


def test_rotated_tests_come_in_turn_or_by_name(monkeypatch):
    folder, story = "tests/native", "native/test_sanitizers.py"
    rotated = f"{folder}/test_huge_pages.py::test_large_native_buffers_use_huge_pages"
    for day in range(3 * STORY_DAYS):
        monkeypatch.setenv("PBG_ROTATION", str(day))
        if not story_comes_today(story) and not comes_today(rotated, 3):
            break
    every, today = collected("--every", folder), collected(folder)
    of_story = {name for name in every if name.startswith(f"tests/{story}")}
    assert of_story | {rotated} <= every - today
    assert collected(f"tests/{story}") == of_story
    assert collected(rotated) == {rotated}


def test_every_lifts_choices_of_day():
    name = "tests/prepare/test_definition.py::test_threads_and_memory_change_no_byte"
    every, today = (listed(*options, name) for options in (["--every"], []))
    assert len(every) == 20
    assert 0 < len(today) < 4
    assert today < every


def test_story_meets_every_choice():
    with pytest.raises(ValueError, match="does not divide"):
        of_today(range(20), 2 * STORY_DAYS)


def test_stories_exist():
    assert [name for name in stories() if not (ROOT / name).is_file()] == [], "remove them from tests/stories.txt"


def collected(*arguments):
    """Return the tests that a run would do, without parameters."""
    return {name.partition("[")[0] for name in listed(*arguments)}


def listed(*arguments):
    """Return the tests that a run would do."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True, check=True, timeout=120)
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
        report("training/test_loop.py", LIMIT / 2),
        report("training/test_loop.py", LIMIT),
        report("storage/test_s3.py", 0.1, "s3"),
    ):
        measured.pytest_runtest_logreport(each)
    measured.pytest_sessionfinish()
    assert listing.read_text() == "storage/test_s3.py\ntest_cli.py\ntraining/test_loop.py\n"
