from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pbg_tasks.errors import ConfigError
from pbg_tasks.storage import LocalStore, open_store


def test_spellings_of_path_open_one_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    place = f"{tmp_path}/a b"
    spellings = ["a b", "./a b/", place, f"file://{tmp_path}/a%20b", Path(place), "~/a b"]
    stores = [open_store(spelling) for spelling in spellings]
    assert {store.url for store in stores} == {place}
    assert all(isinstance(store, LocalStore) for store in stores)


@pytest.mark.parametrize("url", ["s3://bucket/a/b", "s3://bucket/a/b/"])
def test_s3_urls(s3_bucket, url):
    assert open_store(url).url == "s3://bucket/a/b"


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3:///x", "s3://key:secret@bucket/x", "s3://b/../x", "s3://b-/x", "http://host/x", "file://host/x"],
)
def test_urls_that_are_wrong(s3_bucket, url):
    with pytest.raises(ConfigError):
        open_store(url)


def test_importing_storage_imports_nothing_heavy():
    heavy = ["boto3", "botocore", "s3fs", "torch", "numpy", "pyarrow", "duckdb", "h5py"]
    code = f"import sys, pbg_tasks.storage, pbg_tasks.storage.probe; sys.exit(any(m in sys.modules for m in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_empty_path_is_refused():
    """An empty path would mean the process' working directory."""
    with pytest.raises(ConfigError, match="a path is empty"):
        open_store("")
