"""A run as it goes, in lines for a person: what began, how far it is, what ended and how."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from pbg_tasks.progress import human_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.stack.api import AirflowApi, TaskState

POLL_SECONDS = 2.0
RUNNING = "running"
ENDED = ("success", "failed", "skipped", "up_for_retry")
ERROR_LINES = 25


class Watch:
    """Follows one run.

    Args:
        api: of the Airflow it runs on.
        dag_id: the DAG.
        run_id: the run.
        label: what each line begins with.
        say: takes each line.
    """

    def __init__(self, api: AirflowApi, dag_id: str, run_id: str, *, label: str, say: Callable[[str], None]) -> None:
        self._api, self._dag_id, self._run_id = api, dag_id, run_id
        self._label, self._say = label, say
        self._known: dict[str, str | None] = {}
        self._last_line = ""

    def until_finished(self, timeout: float) -> str:
        """Say what happens until the run ends; return its state, ``running`` when ``timeout`` seconds did not do."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            state = self._api.run_state(self._dag_id, self._run_id)
            tasks = self._api.tasks(self._dag_id, self._run_id)
            for task in tasks:
                self._tell(task)
            if state in {"success", "failed"}:
                return state
            time.sleep(POLL_SECONDS)
        return RUNNING

    def errors(self) -> list[str]:
        """Return the failed tasks with the last lines of their logs, error lines before any other."""
        found = []
        for task in self._api.tasks(self._dag_id, self._run_id):
            if task.state == "failed":
                lines = self._api.log(self._dag_id, self._run_id, task)
                said = [line for line in lines if not line.startswith("::")]
                told = [line for line in said if line.startswith("error: ")] or said[-ERROR_LINES:]
                found += [f"task {task.task} failed:", *(f"  {line}" for line in told)]
        return found or [f"run {self._run_id} failed, yet none of its tasks did"]

    def _tell(self, task: TaskState) -> None:
        changed = self._known.get(task.task) != task.state
        self._known[task.task] = task.state
        if changed and task.state in ENDED:
            took = "" if task.seconds is None else f" in {human_seconds(task.seconds)}"
            self._say(f"{self._label}  {task.task}: {task.state}{took}")
        if task.state == RUNNING:
            if changed:
                self._say(f"{self._label}  {task.task}: running")
            self._tell_progress(task)

    def _tell_progress(self, task: TaskState) -> None:
        """Say the newest progress line of a running task, unless it was said before."""
        lines = self._api.log(self._dag_id, self._run_id, task)
        progress = [text for line in lines if (text := progress_text(line))]
        if progress and progress[-1] != self._last_line:
            self._last_line = progress[-1]
            self._say(f"{self._label}    {progress[-1]}")


def progress_text(line: str) -> str | None:
    """Return the text of a line of the ``pbg`` command, ``hh:mm:ss text``; None for any other line."""
    found = re.fullmatch(r"\d\d:\d\d:\d\d (.+)", line)
    return found and found[1]
