"""docker/compose.yaml: its services can run the graph that it mounts.

Checked as far as possible without Docker.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from examples.stack.object_store import SERVICES, _free_ports
from pbg_tasks.config import load_graph_spec
from pbg_tasks.storage import open_store
from tests.docker.files import DOCKER, compose_services, installed


@pytest.fixture(scope="module")
def services():
    return compose_services({"STORE_KEY": "key", "STORE_SECRET": "secret"})


def graphs(services):
    """Return the graph specs that Airflow sees, by their files here."""
    sources = [volume.split(":")[0] for volume in services["airflow"]["volumes"] if "/opt/airflow/graphs" in volume]
    paths = [(DOCKER / source).resolve() for source in sources]
    return [path for source in paths for path in (source.glob("*.yaml") if source.is_dir() else [source])]


def test_airflow_begins_after_the_data_is_written(services):
    assert services["airflow"]["depends_on"]["data"] == {"condition": "service_completed_successfully"}
    assert services["data"]["depends_on"]["store"] == {"condition": "service_healthy"}
    assert "healthcheck" in services["store"]


def test_mounted_graph_has_its_snapshots_and_store(services):
    *_, written = services["data"]["command"]
    bucket = urlsplit(written).netloc
    assert f"-bucket={bucket}" in services["store"]["command"].split()
    assert graphs(services)
    for path in graphs(services):
        spec = load_graph_spec(path)
        assert spec.snapshots.location.startswith(f"{written}/{{snapshot}}/"), path
        assert spec.store.startswith(f"s3://{bucket}/"), path


@pytest.mark.parametrize("name", ["data", "airflow"])
def test_pbg_finds_the_store_in_the_environment(services, name):
    environment = services[name]["environment"]
    assert environment["AWS_ENDPOINT_URL"] == "http://store:8333"
    store = services["store"]["environment"]
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert environment[key] == store[key]


UNPINNED = {"PYTHON_IMAGE": "docker.io/library/python:3.11-slim-bookworm", "UNPINNED": "1"}


def test_all_services_have_the_same_base(services):
    assert services["store"]["build"]["args"] == UNPINNED
    assert {each["build"]["args"]["PYTHON_IMAGE"] for each in services.values()} == {UNPINNED["PYTHON_IMAGE"]}


@pytest.mark.parametrize("name", ["data", "airflow"])
def test_services_that_run_pbg_have_chosen_torch(services, name):
    build = services[name]["build"]
    assert {"torch", "apache-airflow"} <= installed(build["target"])
    assert build["args"] == {"TORCH": "torch==2.13.0", **UNPINNED}
    assert '"${TORCH:-torch==2.13.0}"' in (DOCKER / "compose.yaml").read_text()


def test_data_is_written_by_an_existing_command(services):
    data = services["data"]
    assert data["entrypoint"] == ["pbg"]
    command = [sys.executable, "-m", "pbg_tasks", *data["command"], "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "WordNet 3.0 and 3.1 as two snapshots" in said


@pytest.mark.s3
def test_store_is_healthy_once_bucket_exists(services, tmp_path, monkeypatch):
    """Run its command and health check with other places.

    They use loopback, other ports and a folder.
    """
    ports = dict(zip(SERVICES, _free_ports(len(SERVICES)), strict=True))
    command = services["store"]["command"].replace("-dir=/scratch -ip=store -ip.bind=0.0.0.0 -s3.port=8333", "").split()
    places = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", *(f"-{name}.port={port}" for name, port in ports.items())]
    places += [f"-{name}.localSocket={tmp_path}/{name}.sock" for name in ("filer", "s3")]
    test = services["store"]["healthcheck"]["test"][-1]
    check = test.replace(":8333/", f":{ports['s3']}/").replace(":8888/", f":{ports['filer']}/")
    assert check.count("127.0.0.1:") == 2
    assert "8333" not in check
    keys = {name: value for name, value in services["store"]["environment"].items() if name.startswith("AWS_")}
    server = subprocess.Popen(
        [str(Path(sys.executable).with_name("weed")), *command[1:], f"-dir={tmp_path}", *places],
        cwd=tmp_path,
        env={"PATH": os.defpath, "HOME": str(tmp_path), **keys},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 30
        while subprocess.run([sys.executable, "-c", check], capture_output=True, check=False, timeout=30).returncode:
            assert time.monotonic() < deadline
            assert server.poll() is None
            time.sleep(0.2)
        for name, value in services["airflow"]["environment"].items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{ports['s3']}")
        store = open_store(services["data"]["command"][-1])
        store.put_new("there", b"it is")
        assert store.get("there").data == b"it is"
    finally:
        server.terminate()
        server.wait(timeout=30)
