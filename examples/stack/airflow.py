"""A real Airflow on loopback with all files below one directory.

SQLite, LocalExecutor, and four processes.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from examples.stack.api import AirflowApi
from examples.stack.object_store import without_proxy, write_private
from examples.stack.processes import MARK, Service

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

COMPONENTS = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
HEALTHY_SECONDS = 180.0
MIGRATE_SECONDS = 180.0
USERNAME = "admin"
REPOSITORY = Path(__file__).resolve().parents[2]


class AirflowStackError(RuntimeError):
    """Airflow cannot be started.

    The message shows the end of the log that has the reason.
    """


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings to reach a started Airflow and to sign tokens."""

    port: int
    password: str
    jwt_secret: str
    fernet_key: str

    @property
    def url(self) -> str:
        """Address of its pages and its API."""
        return f"http://127.0.0.1:{self.port}"


class Airflow:
    """One Airflow.

    Args:
        directory: of the stack; Airflow's home is ``airflow`` below it.
        graphs: folder of graph specs.
        environment: variables that tasks need, such as the store's; they go before those of this process.
    """

    def __init__(self, directory: Path, *, graphs: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory.resolve()
        self.home = self.directory / "airflow"
        self._graphs = graphs.resolve()
        self._extra = dict(environment)
        self.settings = self._load_settings()

    @property
    def api(self) -> AirflowApi:
        """Return a client that is signed in when it needs to be."""
        return AirflowApi(self.settings.url, USERNAME, self.settings.password)

    def start(self, report: Callable[[str], None]) -> None:
        """Create the database, start four processes and wait until they are healthy.

        Args:
            report: takes a sentence about each step.

        Raises:
            AirflowStackError: a process ended, or is not healthy in time.
        """
        self.settings = self._save(replace(self.settings, port=_free_port(self.settings.port)))
        environment = self.environment()
        report("airflow: making its database")
        self._migrate(environment)
        running = [Service(name, self.directory) for name in COMPONENTS]
        for service in running:
            service.start([sys.executable, "-m", "airflow", *COMPONENTS[service.name]], environment)
        report(f"airflow: {len(running)} processes started")
        self._wait_until_healthy(running)
        report("airflow: all of them are healthy")

    def environment(self) -> dict[str, str]:
        """Return the environment of Airflow's processes.

        It is free of any other Airflow's and store's settings.
        """
        # PYTHONPATH may lead to a second copy of this package's metadata, and Airflow reports a plugin found twice.
        foreign = ("AIRFLOW", "AWS_", "PBG_", "PYTHONPATH")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        port, home = self.settings.port, self.home
        return {
            **inherited,
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__FERNET_KEY": self.settings.fernet_key,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.settings.url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USERNAME}:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": self.settings.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": self.settings.jwt_secret,
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            **without_proxy(),
            "PBG_GRAPHS": str(self._graphs),
            "PBG_SCRATCH": str(self.directory / "scratch"),
            "PYTHONUNBUFFERED": "1",
            MARK: str(self.directory),
            **self._extra,
        }

    def _load_settings(self) -> Settings:
        path = self.home / "settings.json"
        if path.exists():
            return Settings(**json.loads(path.read_text()))
        return self._save(
            Settings(
                port=_free_port(),
                password=secrets.token_urlsafe(9),
                jwt_secret=secrets.token_hex(32),
                fernet_key=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            )
        )

    def _save(self, settings: Settings) -> Settings:
        self.home.mkdir(parents=True, exist_ok=True)
        write_private(self.home / "passwords.json", json.dumps({USERNAME: settings.password}))
        write_private(self.home / "settings.json", json.dumps(asdict(settings)))
        return settings

    def _migrate(self, environment: dict[str, str]) -> None:
        log = Service("migrate", self.directory).log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            done = subprocess.run(
                [sys.executable, "-m", "airflow", "db", "migrate"],
                env=environment,
                cwd=self.home,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=MIGRATE_SECONDS,
                check=False,
            )
        if done.returncode != 0:
            tail = Service("migrate", self.directory).tail(15)
            raise AirflowStackError(f"`airflow db migrate` ended with status {done.returncode}:\n{tail}")

    def _wait_until_healthy(self, running: list[Service]) -> None:
        deadline = time.monotonic() + HEALTHY_SECONDS
        while time.monotonic() < deadline:
            for service in running:
                if service.identity() is None:
                    raise AirflowStackError(f"{service.name} ended; its log {service.log} says:\n{service.tail(15)}")
            health = self.api.health()
            if health and all(status == "healthy" for status in health.values()):
                return
            time.sleep(0.5)
        raise AirflowStackError(
            f"not healthy after {HEALTHY_SECONDS:.0f} s: {health}; logs are in {running[0].log.parent}"
        )


def _free_port(preferred: int = 0) -> int:
    """Return ``preferred`` if it is free, else any port that is."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a server does: a port in TIME_WAIT is free
        try:
            listener.bind(("127.0.0.1", preferred))
        except OSError:
            return _free_port()
        port: int = listener.getsockname()[1]
        return port
