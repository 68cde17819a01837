"""The whole stack below one directory.

A real S3 server and a real Airflow that works on it.
"""

from __future__ import annotations

import json
import shlex
import shutil
from typing import TYPE_CHECKING

from examples.stack import processes
from examples.stack.airflow import USERNAME, Airflow
from examples.stack.object_store import ObjectStore, write_private

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

KEPT_DATA = ("s3", "airflow", "logs", "scratch")


class Stack:
    """An S3 server, an Airflow, and the connection between them.

    Args:
        directory: for everything that the stack writes.
        graphs: folder of graph specs.
        settings: variables of Airflow's processes, which override all others.
    """

    def __init__(self, directory: Path, *, graphs: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory.resolve()
        self._graphs = graphs
        self._settings = dict(settings or {})
        self.store = ObjectStore(self.directory / "s3")

    @property
    def shell(self) -> Path:
        """Script that gives a shell the S3 server's endpoint and keys."""
        return self.directory / "s3.env"

    def stop(self) -> int:
        """Stop everything that runs, also services of an earlier command.

        Returns the number of Airflow's processes.
        """
        stopped = processes.stop(self.directory)
        self.store.stop()
        return stopped

    @property
    def mark(self) -> Path:
        """File that names the folder of a user's graphs."""
        return self.directory / "graphs-of-user"

    def mark_graphs(self) -> None:
        """Keep the demo from the data of other graphs."""
        if self._graphs.resolve() != self.directory / "graphs":
            self.directory.mkdir(parents=True, exist_ok=True)
            self.mark.write_text(f"{self._graphs.resolve()}\n", encoding="utf-8")

    def clear(self) -> None:
        """Remove the files of earlier runs, which must have ended."""
        for name in KEPT_DATA:
            shutil.rmtree(self.directory / name, ignore_errors=True)

    def start_store(self, *buckets: str) -> dict[str, str]:
        """Start the S3 server with these buckets; return its clients' environment."""
        self.store.start()
        for bucket in buckets:
            self.store.create_bucket(bucket)
        environment = self.store.environment()
        lines = (f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
        write_private(self.shell, "".join(lines))
        return environment

    def start_airflow(self, report: Callable[[str], None]) -> Airflow:
        """Start Airflow, with the S3 server as connection ``pbg_s3``."""
        airflow = self.airflow()
        airflow.start(report)
        return airflow

    def airflow(self) -> Airflow:
        """Return the Airflow of this stack, running or not.

        The S3 server was started before.
        """
        environment = self.store.environment()
        connection = {"AIRFLOW_CONN_PBG_S3": connection_of(environment)}
        return Airflow(self.directory, graphs=self._graphs, environment=environment | connection | self._settings)

    def status(self) -> dict[str, str]:
        """Return the state of each service in words."""
        return {
            service.name: f"running, process {identity.pid}" if (identity := service.identity()) else "not running"
            for service in processes.services(self.directory)
        }

    def login(self) -> dict[str, str]:
        """Return the address of Airflow's pages and the user's credentials."""
        settings = self.airflow().settings
        return {"url": settings.url, "username": USERNAME, "password": settings.password}


def connection_of(environment: dict[str, str]) -> str:
    """Write the S3 server as an Airflow connection."""
    return json.dumps(
        {
            "conn_type": "aws",
            "login": environment["AWS_ACCESS_KEY_ID"],
            "password": environment["AWS_SECRET_ACCESS_KEY"],
            "extra": {
                "endpoint_url": environment["AWS_ENDPOINT_URL"],
                "region_name": environment["AWS_DEFAULT_REGION"],
            },
        }
    )
