"""The part of Airflow's REST API that watching a run needs."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

TIMEOUT_SECONDS = 120.0  # a busy machine answers late; a POST that timed out may have been carried out


class AirflowApiError(RuntimeError):
    """Airflow refused a request; the message holds its reason."""


@dataclass(frozen=True, slots=True)
class TaskState:
    """State of one task of a run.

    Attributes:
        task: its id, with its group.
        state: Airflow's word; None before it is scheduled.
        tries: number of times it was begun.
        seconds: duration of the current or last try, None before the first.
    """

    task: str
    state: str | None
    tries: int
    seconds: float | None


class AirflowApi:
    """Client of one Airflow, signed in as a user.

    Args:
        url: of the API server.
        username: of the user.
        password: of the user.
    """

    def __init__(self, url: str, username: str, password: str) -> None:
        self._url = url
        self._login = {"username": username, "password": password}
        self._token = ""
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({})
        )  # the server is on loopback: no proxy

    def health(self) -> dict[str, str | None]:
        """Return the status of each component; empty while nothing answers."""
        try:
            report = self._send("GET", "/api/v2/monitor/health")
        except (OSError, ValueError):
            return {}
        return {component: each["status"] for component, each in report.items()}

    def dag_ids(self) -> list[str]:
        """Return the ids of all DAGs."""
        return [dag["dag_id"] for dag in self._get("dags")["dags"]]

    def import_errors(self) -> list[str]:
        """Return the reasons why DAG files could not be read."""
        return [error["stack_trace"] for error in self._get("importErrors")["import_errors"]]

    def plugin_errors(self) -> list[str]:
        """Return the reasons why plugins could not be loaded."""
        return [error["error"] for error in self._get("plugins/importErrors")["import_errors"]]

    def unpause(self, dag_id: str) -> None:
        """Let a DAG's runs start."""
        self._call("PATCH", f"dags/{dag_id}", {"is_paused": False})

    def trigger(self, dag_id: str, *, partition_key: str | None = None, conf: dict[str, Any] | None = None) -> str:
        """Create a run and return its id."""
        body = {"logical_date": None, "partition_key": partition_key, "conf": conf or {}}
        run_id: str = self._call("POST", f"dags/{dag_id}/dagRuns", body)["dag_run_id"]
        return run_id

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Return a DAG's runs."""
        runs: list[dict[str, Any]] = self._get(f"dags/{dag_id}/dagRuns")["dag_runs"]
        return runs

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return a run's state."""
        state: str = self._get(f"dags/{dag_id}/dagRuns/{run_id}")["state"]
        return state

    def tasks(self, dag_id: str, run_id: str) -> list[TaskState]:
        """Return the tasks of a run in order of their start.

        Those that have not begun come last.
        """
        instances = self._get(f"dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        instances.sort(key=lambda instance: instance["start_date"] or "~")
        return [TaskState(each["task_id"], each["state"], each["try_number"], each["duration"]) for each in instances]

    def log(self, dag_id: str, run_id: str, task: TaskState) -> list[str]:
        """Return the lines of a task's current or last try."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task.task}/logs/{max(task.tries, 1)}"
        entries = self._get(path)["content"]
        return [line for entry in entries for line in _log_lines(entry)]

    def result(self, dag_id: str, run_id: str, task_id: str) -> Any:  # noqa: ANN401 - any JSON value
        """Return the result of a task."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value"
        return self._get(f"{path}?deserialize=true")["value"]

    def get(self, path: str) -> Any:  # noqa: ANN401 - any JSON value
        """Return any other resource, by its path below ``/api/v2``."""
        return self._get(path)

    def post(self, path: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
        """Create any other resource, by its path below ``/api/v2``."""
        return self._call("POST", path, body)

    def patch(self, path: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
        """Change any other resource, by its path below ``/api/v2``."""
        return self._call("PATCH", path, body)

    def _get(self, path: str) -> Any:  # noqa: ANN401 - any JSON value
        return self._call("GET", path)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:  # noqa: ANN401 - any JSON value
        what = f"{method} {path}"
        try:
            return self._send(method, f"/api/v2/{path}", body)
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.UNAUTHORIZED:
                raise _refused(what, error) from None
            error.close()
        except OSError as error:
            raise AirflowApiError(f"{what}: no answer from {self._url}: {error}") from None
        self._sign_in()  # not done yet, or the token ran out
        try:
            return self._send(method, f"/api/v2/{path}", body)
        except urllib.error.HTTPError as error:
            raise _refused(what, error) from None

    def _sign_in(self) -> None:
        try:
            self._token = self._send("POST", "/auth/token", self._login)["access_token"]
        except urllib.error.HTTPError as error:
            raise _refused(f"signing in as {self._login['username']}", error) from None

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:  # noqa: ANN401 - any JSON value
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        url = self._url + quote(path, safe="/?=&:+%")
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - our own server's URL
        with self._opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
            return json.load(answer)


def _refused(what: str, error: urllib.error.HTTPError) -> AirflowApiError:
    with error:
        return AirflowApiError(f"{what}: {error.code}: {error.read(500).decode(errors='replace')}")


def _log_lines(entry: dict[str, Any] | str) -> list[str]:
    """Return an entry's text and, below it, the exceptions it reports."""
    if isinstance(entry, str):
        return [entry]
    exceptions = entry.get("error_detail") or []
    return [str(entry["event"]), *(f"{each['exc_type']}: {each['exc_value']}" for each in exceptions)]
