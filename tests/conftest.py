"""Fixtures every room's tests may use."""

from __future__ import annotations

import gc
import os
import secrets
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from examples.stack.object_store import ObjectStore
from tests.rotation import fix_rotation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

settings.register_profile("suite", deadline=None)  # how long an example takes depends on what else the machine does
settings.load_profile("suite")

# They assert like tests, so that their failures show both sides, too.
pytest.register_assert_rewrite("tests.contract", "pbg_tasks.storage.contract")


fix_rotation()  # before the workers of a run start, and before modules choose by it what they test


def pytest_report_header() -> str:
    """Name what repeats the choice of this run."""
    return f"PBG_ROTATION={fix_rotation()}"


def pytest_collection_finish() -> None:
    """Spare the garbage collector what lives to the end: walking it again and again is a tenth of the work."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let the interpreter take everything down at its end: DuckDB reports what is left as leaks."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """A real S3 server, started once and only when a test asks for it."""
    with ObjectStore(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def _s3_root(object_store: ObjectStore) -> str:
    return object_store.create_bucket("tests")


@pytest.fixture
def s3_bucket(object_store: ObjectStore, _s3_root: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty place in the S3 server; the environment gives access to it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in object_store.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    return f"{_s3_root}/{secrets.token_hex(6)}"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 2 MiB, so that a full disk is a real one."""
    disk = tmp_path / "small-disk"
    disk.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if mount is None or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system takes root and the right to mount")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)  # noqa: S607 (beside mount, wherever that is)
