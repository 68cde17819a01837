"""The part of Airflow's REST API that watching a run needs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Callable

FINISHED = ("success", "failed")
TIMEOUT_SECONDS = 30.0


class AirflowApiError(RuntimeError):
    """Airflow refused a request; the message holds its reason."""


@dataclass(frozen=True, slots=True)
class TaskState:
    """What one task of a run is doing.

    Attributes:
        task: its id, with its group.
        state: Airflow's word; None before it is scheduled.
        tries: how often it was begun.
        seconds: how long the current or last try has taken, None before the first.
    """

    task: str
    state: str | None
    tries: int
    seconds: float | None


class AirflowApi:
    """A signed-in user of one Airflow.

    Args:
        url: of the API server.
        username: who.
        password: theirs.
    """

    def __init__(self, url: str, username: str, password: str) -> None:
        self._client = httpx.Client(
            base_url=url, timeout=TIMEOUT_SECONDS, trust_env=False, headers={"Accept": "application/json"}
        )
        self._login = {"username": username, "password": password}

    def health(self) -> dict[str, str | None]:
        """Return the status of each component; empty while nothing answers."""
        try:
            answer = self._client.get("/api/v2/monitor/health", timeout=5)
        except httpx.TransportError:
            return {}
        if answer.is_error:
            return {}
        return {component: report["status"] for component, report in answer.json().items()}

    def dag_ids(self) -> list[str]:
        """Return the ids of all DAGs."""
        return [dag["dag_id"] for dag in self._get("dags")["dags"]]

    def import_errors(self) -> list[str]:
        """Return why DAG files could not be read."""
        return [error["stack_trace"] for error in self._get("importErrors")["import_errors"]]

    def unpause(self, dag_id: str) -> None:
        """Let a DAG's runs start."""
        self._call("PATCH", f"dags/{dag_id}", json={"is_paused": False})

    def trigger(self, dag_id: str, *, partition_key: str | None = None, conf: dict[str, Any] | None = None) -> str:
        """Create a run and return its id."""
        body = {"logical_date": None, "partition_key": partition_key, "conf": conf or {}}
        run_id: str = self._call("POST", f"dags/{dag_id}/dagRuns", json=body)["dag_run_id"]
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
        """Return the state of each task of a run, in the order they began; those that did not come last."""
        instances = self._get(f"dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        instances.sort(key=lambda instance: instance["start_date"] or "~")
        return [TaskState(each["task_id"], each["state"], each["try_number"], each["duration"]) for each in instances]

    def log(self, dag_id: str, run_id: str, task: TaskState) -> list[str]:
        """Return the lines of a task's current or last try."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task.task}/logs/{max(task.tries, 1)}"
        entries = self._get(path)["content"]
        return [line for entry in entries for line in _log_lines(entry)]

    def result(self, dag_id: str, run_id: str, task_id: str) -> Any:  # noqa: ANN401 - any JSON value
        """Return what a task returned."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value"
        return self._get(path, params={"deserialize": "true"})["value"]

    def get(self, path: str) -> Any:  # noqa: ANN401 - any JSON value
        """Return anything else, by its path below ``/api/v2``."""
        return self._get(path)

    def post(self, path: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
        """Create anything else, by its path below ``/api/v2``."""
        return self._call("POST", path, json=body)

    def watch(self, dag_id: str, run_id: str, *, seen: Callable[[list[TaskState]], None], interval: float) -> str:
        """Wait for the end of a run, calling ``seen`` with its tasks every ``interval`` seconds; return its state."""
        while True:
            state = self.run_state(dag_id, run_id)
            seen(self.tasks(dag_id, run_id))
            if state in FINISHED:
                return state
            time.sleep(interval)

    def patch(self, path: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
        """Change anything else, by its path below ``/api/v2``."""
        return self._call("PATCH", path, json=body)

    def _get(self, path: str, **options: Any) -> Any:  # noqa: ANN401 - any JSON value
        return self._call("GET", path, **options)

    def _call(self, method: str, path: str, **options: Any) -> Any:  # noqa: ANN401 - any JSON value
        answer = self._client.request(method, f"/api/v2/{path}", **options)
        if answer.status_code == httpx.codes.UNAUTHORIZED:  # not signed in yet, or the token ran out
            self._sign_in()
            answer = self._client.request(method, f"/api/v2/{path}", **options)
        if answer.is_error:
            raise AirflowApiError(f"{method} {path}: {answer.status_code}: {answer.text[:500]}")
        return answer.json()

    def _sign_in(self) -> None:
        answer = self._client.post("/auth/token", json=self._login)
        if answer.is_error:
            raise AirflowApiError(f"signing in as {self._login['username']}: {answer.status_code}: {answer.text[:500]}")
        self._client.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"


def _log_lines(entry: dict[str, Any] | str) -> list[str]:
    """Return an entry's text and, below it, the exceptions it reports."""
    if isinstance(entry, str):
        return [entry]
    exceptions = entry.get("error_detail") or []
    return [str(entry["event"]), *(f"{each['exc_type']}: {each['exc_value']}" for each in exceptions)]
