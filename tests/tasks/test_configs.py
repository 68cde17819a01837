"""PBG configs by URL, and the output of ``pbg config``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pbg_tasks.errors import ConfigError
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.directory.configs import load_config_from, read_config_document, show_config
from tests.config.examples import FB15K, FREEBASE_YAML


@pytest.fixture
def fb15k(tmp_path):
    path = tmp_path / "fb15k_config.py"
    path.write_text(FB15K)
    return str(path)


def test_config_is_read_by_path_and_from_s3(fb15k, s3_bucket, tmp_path, monkeypatch):
    url = f"{s3_bucket}/configs/fb15k_config.py"
    open_store(f"{s3_bucket}/configs").put("fb15k_config.py", FB15K.encode())
    monkeypatch.chdir(tmp_path)
    for each in (fb15k, "fb15k_config.py", f"file://{fb15k}", url):
        assert read_config_document(each) == FB15K.encode()
        assert load_config_from(each, ["dimension=10"]).dimension == 10


@pytest.mark.parametrize("name", ["nothing.py", "", "folder", "folder/../../x.py"])
def test_missing_config_is_named(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError):
        load_config_from(f"{tmp_path}/{name}")


def test_paths_stay_as_written(fb15k):
    assert load_config_from(fb15k).entity_path == "data/FB15k"


def test_own_keys_are_shown_on_request(fb15k):
    assert "lr_schedule" not in show_config(fb15k)
    assert show_config(fb15k, "lr_schedule") == "constant"
    assert show_config(fb15k, "entities.all.trainable") is True
    assert show_config(fb15k, overrides=["lr_schedule=cosine"])["lr_schedule"] == "cosine"


@pytest.mark.rotated(3)
def test_command_prints_all_keys_or_one(fb15k):
    def pbg(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "pbg_tasks", "config", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    whole = pbg(fb15k, "-p", "max_norm=1", "--json")
    assert json.loads(whole.stdout) == load_config_from(fb15k, ["max_norm=1"]).to_pbg()
    assert pbg(fb15k, "relations.0.operator").stdout == "complex_diagonal\n"
    assert pbg(fb15k, "edgePaths.0", "--json").stdout == '"data/FB15k/freebase_mtr100_mte100-train_partitioned"\n'
    wrong = pbg(fb15k, "relations.0.oprator")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "there is no 'oprator'; did you mean 'operator'?" in wrong.stderr


def test_yaml_config_is_shown_with_its_defaults(tmp_path):
    path = tmp_path / "freebase.yaml"
    path.write_text(FREEBASE_YAML)
    assert show_config(str(path), "batch_size") == 1000
