"""Progress of a run, in lines for a person.

The tasks that began, their progress, and how each ended.
"""

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
    """Report on one run.

    Args:
        api: of the Airflow it runs on.
        dag_id: the DAG.
        run_id: the run.
        label: begins each line.
        report: takes each line.
    """

    def __init__(self, api: AirflowApi, dag_id: str, run_id: str, *, label: str, report: Callable[[str], None]) -> None:
        self._api, self._dag_id, self._run_id = api, dag_id, run_id
        self._label, self._report = label, report
        self._known: dict[str, str | None] = {}
        self._last_line = ""

    def until_finished(self, timeout: float) -> str:
        """Report until the run ends; return its state.

        The state is ``running`` when the run takes longer than ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            state = self._api.run_state(self._dag_id, self._run_id)
            tasks = self._api.tasks(self._dag_id, self._run_id)
            for task in tasks:
                self._report_task(task)
            if state in {"success", "failed"}:
                return state
            time.sleep(POLL_SECONDS)
        return RUNNING

    def errors(self) -> list[str]:
        """Return the failed tasks with the last lines of their logs.

        Error lines come before any other.
        """
        found = []
        for task in self._api.tasks(self._dag_id, self._run_id):
            if task.state == "failed":
                lines = self._api.log(self._dag_id, self._run_id, task)
                printed = [line for line in lines if not line.startswith("::")]
                shown = [line for line in printed if line.startswith("error: ")] or printed[-ERROR_LINES:]
                found += [f"task {task.task} failed:", *(f"  {line}" for line in shown)]
        return found or [f"run {self._run_id} failed, yet none of its tasks did"]

    def _report_task(self, task: TaskState) -> None:
        changed = self._known.get(task.task) != task.state
        self._known[task.task] = task.state
        if changed and task.state in ENDED:
            took = "" if task.seconds is None else f" in {human_seconds(task.seconds)}"
            self._report(f"{self._label}  {task.task}: {task.state}{took}")
        if task.state == RUNNING:
            if changed:
                self._report(f"{self._label}  {task.task}: running")
            self._report_progress(task)

    def _report_progress(self, task: TaskState) -> None:
        """Report the newest progress line of a running task once."""
        lines = self._api.log(self._dag_id, self._run_id, task)
        progress = [text for line in lines if (text := progress_text(line))]
        if progress and progress[-1] != self._last_line:
            self._last_line = progress[-1]
            self._report(f"{self._label}    {progress[-1]}")


def progress_text(line: str) -> str | None:
    """Return the text of a ``pbg`` line ``hh:mm:ss text``, else None."""
    found = re.fullmatch(r"\d\d:\d\d:\d\d (.+)", line)
    return found and found[1]
