"""``compose.yaml`` as podman-compose starts it, up to a released night.

Its images are those that the test of the chain builds too. The order of its services is kept here and not by
podman-compose: Debian's podman (4.3) runs no health check where there is no systemd, and starts no container that
depends on one that has ended. The tests of this file are one story and run in the order they stand in.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from examples.stack.api import AirflowApi
from examples.stack.demo import DAG, NIGHTS
from examples.stack.watch import Watch
from tests.docker.containers import certificates, podman, until
from tests.docker.files import DOCKER, REPOSITORY, compose_services
from tests.docker.images import BUILT, make, missing_programs, name_of, podman_refuses

COMPOSE = Path(sys.executable).with_name("podman-compose")
PORTS = (8080, 8333)
"""Ports of this machine that the file publishes."""
pytestmark = [
    pytest.mark.airflow,
    pytest.mark.timeout(90 * 60),
    pytest.mark.skipif(BUILT not in os.environ, reason=f"takes long; set {BUILT} to run it"),
    pytest.mark.skipif(missing_programs() != [], reason=f"{', '.join(missing_programs())}: not installed"),
    pytest.mark.skipif(not COMPOSE.exists(), reason="podman-compose is not installed"),
]
UP_SECONDS = 60.0 * 30
NIGHT_SECONDS = 60.0 * 30


class Project:
    """The services of ``compose.yaml``.

    Args:
        folder: for a second file, with images that are built and this machine's certificates, and for a graph spec that
            trains less than the file's own.
    """

    def __init__(self, folder: Path) -> None:
        self.name = f"pbg{os.getpid()}"
        variables, volumes = certificates()
        override: dict[str, dict[str, object]] = {
            name: {"image": name_of(service["build"]["target"])}
            for name, service in compose_services({"STORE_KEY": "", "STORE_SECRET": ""}).items()
        }
        override["data"] |= {"environment": variables, "volumes": volumes}
        self._files = [DOCKER / "compose.yaml", folder / "override.yaml"]
        text = yaml.safe_dump({"services": override})
        for name in ("data", "airflow"):
            text = text.replace(f"  {name}:\n", f"  {name}:\n    depends_on: !reset {{}}\n")
        self._files[1].write_text(text)
        spec = yaml.safe_load((REPOSITORY / "examples" / "graphs" / "wordnet.yaml").read_text())
        spec["model"] |= {"num_epochs": 2}
        spec["gates"] |= {"min_mrr": 0.01, "min_over_popularity": {}}
        spec["airflow"] = {"few_tasks": True}
        (folder / "graph.yaml").write_text(yaml.safe_dump(spec))
        (folder / "graph.yaml").chmod(0o644)
        keys = {"STORE_KEY": "demo", "STORE_SECRET": secrets.token_hex(20)}
        self._environment = os.environ | keys | {"GRAPH": str(folder / "graph.yaml")}

    def __call__(self, *arguments: str) -> str:
        """Run a command of podman-compose; return its output.

        Raises:
            AssertionError: it failed.
        """
        files = [f"--file={path}" for path in self._files]
        command = [str(COMPOSE), "--project-name", self.name, *files, *arguments]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=UP_SECONDS, check=False
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    def container(self, service: str) -> str:
        """Return the name of a service's container."""
        return f"{self.name}_{service}_1"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The services, of which ``data`` has ended."""
    for port in PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"port {port} is taken")
    with pytest.MonkeyPatch.context() as patch:
        if os.environ[BUILT] != "built":
            make("store", "worker")
        folder = tmp_path_factory.mktemp("compose")
        if refusal := podman_refuses(name_of("store"), folder, patch):
            pytest.skip(f"podman cannot run a container here: {refusal}")
        project = Project(folder)
        try:
            up = ("up", "--detach", "--no-build")
            project(*up, "store")
            check = ("healthcheck", "run", project.container("store"))
            until("the store is healthy", lambda: podman(*check) is not None, UP_SECONDS, lambda: project("ps"))
            project(*up, "data")
            assert podman("wait", project.container("data")).split() == ["0"]
            project(*up, "airflow")
            yield project
        finally:
            project("down", "--volumes")


@pytest.fixture(scope="module")
def api(project):
    """The API of Airflow, whose password is in its log."""

    def password():
        log = podman("logs", project.container("airflow"), errors=True)
        return re.search(r"Password for user 'admin': (\S+)", log)

    def log():
        return podman("logs", "--tail=40", project.container("airflow"), errors=True)

    api = AirflowApi("http://127.0.0.1:8080", "admin", until("Airflow has a password", password, UP_SECONDS, log)[1])
    until("the DAG is read", lambda: DAG in api.dag_ids(), UP_SECONDS, log)
    return api


def test_night_of_the_laptop_is_released(project, api):
    run_id = api.trigger(DAG, partition_key=NIGHTS[0])
    watch = Watch(api, DAG, run_id, label=NIGHTS[0], report=print)
    assert watch.until_finished(NIGHT_SECONDS) == "success", "\n".join(watch.errors())
    listed = podman("exec", project.container("airflow"), "pbg", "releases", "/opt/airflow/graphs/graph.yaml", "--json")
    (release,) = json.loads(listed.strip().splitlines()[-1])
    assert (release["snapshot"], release["current"]) == (NIGHTS[0], True)
