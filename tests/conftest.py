"""Fixtures for the tests of every room."""

from __future__ import annotations

import atexit
import gc
import os
import secrets
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from pbg_tasks.advice import UNNAMED, name_spec
from tests import rotation, tiers
from tests.rotation import comes_today, fix_rotation, story_comes_today

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from examples.stack.object_store import ObjectStore
    from tests.tasks.conftest import Workplace

settings.register_profile("suite", deadline=None)  # the duration of an example depends on the machine's other work
settings.load_profile("suite")

# They assert like tests, so that their failures show both sides, too.
pytest.register_assert_rewrite("tests.contract", "pbg_tasks.storage.contract")


gc.disable()  # until all tests are collected: objects that are made until then live to the end
fix_rotation()  # before the workers of a run start, and before modules decide by it what they test


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run choose its tier, and measure files for it."""
    parser.addoption("--fast", action="store_true", help="leave out the files that tests/slow.txt lists")
    parser.addoption("--every", action="store_true", help="also run the tests that have their turn on another day")
    parser.addoption("--measure", action="store_true", help="write tests/slow.txt anew, as far as files run")


def pytest_configure(config: pytest.Config) -> None:
    """Lift choices, and measure in the process that all reports reach."""
    rotation.lifted = config.getoption("every")
    if config.getoption("measure") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(tiers.Measurement())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out slow files, if fast, and stories of other days.

    Slow are folders of slow files, too. A story whose file is named, alone or with a test, comes to no such question.
    """
    if config.getoption("fast") and tiers.is_left_out(collection_path, tiers.slow_files()):
        return True
    waits = not config.getoption("every") and not story_comes_today(_below_tests(collection_path))
    return True if waits else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by tier, and leave out those of other days.

    A test that is named runs on every day.
    """
    tiers.mark(items)
    if config.getoption("every") or any("::" in each for each in config.args):
        return
    others = [item for item in items if not _comes_today(item)]
    if others:
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]


def _comes_today(item: pytest.Item) -> bool:
    """Whether a test has its turn, by its mark."""
    mark = item.get_closest_marker("rotated")
    return mark is None or _in_turn(item, *mark.args, **mark.kwargs)


def _below_tests(path: Path) -> str:
    """Return a file's name as the list of stories has it."""
    return path.relative_to(tiers.ROOT).as_posix()


def _in_turn(item: pytest.Item, days: int, group: str = "") -> bool:
    return comes_today(group or item.nodeid, days)


def pytest_report_header() -> str:
    """Name the setting that repeats the choice of this run."""
    return f"PBG_ROTATION={fix_rotation()}"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt the objects of collection from the garbage collector.

    They live to the end, and walking them again and again is a tenth of the work, and a quarter of collecting alone.
    """
    gc.freeze()
    gc.enable()
    if not session.config.option.collectonly:
        atexit.register(gc.unfreeze)  # DuckDB would report as leaks what its tests left


@pytest.fixture(autouse=True)
def _no_spec_is_given() -> Iterator[None]:
    """Forget the graph spec that a test gave to a command."""
    yield
    name_spec(UNNAMED)


@pytest.fixture
def swift_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip syncing to disk: power failures do not happen here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """A real S3 server, started once and on demand only."""
    from examples.stack.object_store import ObjectStore

    with ObjectStore(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def _s3_root(object_store: ObjectStore) -> str:
    return object_store.create_bucket("tests")


@pytest.fixture
def s3_bucket(object_store: ObjectStore, _s3_root: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty place in the S3 server.

    The environment gives access to it.
    """
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in object_store.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    return f"{_s3_root}/{secrets.token_hex(6)}"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB, for a really full disk."""
    disk = tmp_path / "small-disk"
    disk.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if mount is None or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system takes root and the right to mount")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)  # noqa: S607 (beside mount, wherever that is)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory below which the test's scratch directories are made."""
    monkeypatch.setenv("PBG_SCRATCH", str(tmp_path / "scratch"))
    return tmp_path / "scratch"


@pytest.fixture
def place(tmp_path: Path, scratch: Path) -> Workplace:
    """A directory with snapshots, a store and a spec."""
    from tests.tasks.conftest import Workplace

    return Workplace(tmp_path)
