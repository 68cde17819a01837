"""Listener of the scheduler that notes refusals on tasks and runs.

Airflow has one state for a night that was refused and one that broke, and gives workers no way to write a note. The
scheduler stores these notes together with the run's state.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pbg_operators.internals import hookimpl
from pbg_operators.markdown import as_markdown

if TYPE_CHECKING:
    from pbg_operators.internals import DagRun

NOTED = "Refused in try "
"""Beginning of the note of a task that refused a night."""
_LONGEST = 1000  # characters of Airflow's columns
_OURS = "pbg_operators."
log = logging.getLogger(__name__)


@hookimpl
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001 - Airflow's signature
    """Write a refusal into the notes of its task and run.

    Notes of a user's own stay, and so do other tasks with an XCom of this key. A task that is cleared keeps the note of
    its last refusal, which counts its tries. Airflow shows notes as Markdown.
    """
    try:
        from sqlalchemy.orm import object_session

        from pbg_operators.plugin.attempts import refusals  # only the scheduler needs the models

        session, tasks = object_session(dag_run), dag_run.dag.task_dict if dag_run.dag is not None else {}
        for task, sentence in refusals(session, dag_run) if session is not None else ():
            if not getattr(tasks.get(task.task_id), "_task_module", "").startswith(_OURS):
                continue
            if not task.note or task.note.startswith(NOTED):
                task.note = f"{NOTED}{task.try_number}: {as_markdown(sentence)}"[:_LONGEST]
            if dag_run.note == f"Snapshot {dag_run.partition_key}":
                dag_run.note = f"{dag_run.note}, refused by {task.task_id}"
    except Exception as error:  # noqa: BLE001 - a scheduler goes on without them
        log.warning("run %s of %s has no notes of refusals: %s", dag_run.run_id, dag_run.dag_id, error)
