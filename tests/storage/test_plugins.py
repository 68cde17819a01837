"""Stores of other packages, by the scheme of their URLs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pbg_tasks.errors import ConfigError
from pbg_tasks.storage import LocalStore, is_remote, open_file, open_store
from tests.contract.store import StoreContract, large_file
from tests.model.plugins import package_folder

__all__ = ["large_file"]

SHARE = """
from pathlib import Path
from urllib.parse import urlsplit

from pbg_tasks.storage import LocalStore
from pbg_tasks.storage.metered import MeteredStore


class Share(MeteredStore):
    def __init__(self, url, environment):
        parts = urlsplit(url)
        super().__init__(LocalStore(Path(f"{root}/{parts.netloc}{parts.path}")))
        self._url, self.environment = url.rstrip("/"), environment

    @property
    def url(self):
        return self._url
"""


@pytest.fixture
def install(tmp_path):
    with package_folder(tmp_path / "site") as write:
        yield lambda source, target: write("shares", source, {"pbg_tasks.stores": {"share": f"shares:{target}"}})


class TestStoreOfPackage(StoreContract):
    @pytest.fixture
    def store(self, tmp_path, install):
        install(SHARE.replace("{root}", str(tmp_path)), "Share")
        return open_store("share://server/folder")


def test_store_of_package_gets_environment(tmp_path, install):
    install(SHARE.replace("{root}", str(tmp_path)), "Share")
    environment = {"SHARE_TOKEN": "1"}
    store = open_store("share://server/a/", environment=environment)
    assert (store.url, store.environment) == ("share://server/a", environment)
    store, name = open_file("share://server/a/b.yaml")
    assert (store.url, name) == ("share://server/a", "b.yaml")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import gone", "failed: ModuleNotFoundError: No module named 'gone'"),
        ("raise SystemExit('no licence')", "failed: SystemExit: no licence"),
        ("made = 1", "is 1, not a function open"),
        ("made = lambda url, environment: object()", "gives object, which lacks methods of .*Store"),
        ("def made(url, environment): raise OSError('no route')", "failed: OSError: no route"),
    ],
)
def test_fault_of_package_is_named(install, source, problem):
    install(source, "made")
    with pytest.raises(
        ConfigError, match=rf"store 'share', entry point shares:made of the package shares 1.0, {problem}"
    ):
        open_store("share://server/a")


def test_broken_package_leaves_other_stores(tmp_path, install):
    install("import gone", "made")
    assert isinstance(open_store(str(tmp_path)), LocalStore)


def test_unknown_scheme_lists_installed_ones(install):
    install("import gone", "made")
    with pytest.raises(ConfigError, match=r"gs://b/x: no store has the scheme gs://; .* file://, s3://, share://, or"):
        open_store("gs://b/x")


def test_package_cannot_take_built_in_scheme(tmp_path):
    with package_folder(tmp_path / "site") as write:
        write("shares", "import gone", {"pbg_tasks.stores": {"file": "shares:made"}})
        assert isinstance(open_store(f"file://{tmp_path}"), LocalStore)


def test_importing_stores_imports_no_package(tmp_path):
    with package_folder(tmp_path / "site") as write:
        write("shares", "raise SystemExit(3)", {"pbg_tasks.stores": {"share": "shares:made"}})
        code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); import pbg_tasks.cli, pbg_tasks.storage"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("url", "remote"), [("a/b", False), ("/a", False), ("file:///a", False), ("s3://b/a", True), ("share://b/a", True)]
)
def test_remote_store_is_one_of_another_scheme(url, remote):
    assert is_remote(url) is remote
