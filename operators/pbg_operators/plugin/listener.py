"""Listener of the scheduler: partition keys, and notes on tasks and runs.

The scheduler stores both together with a run's state; Airflow gives workers no way to write a note.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pbg_operators.internals import hookimpl
from pbg_operators.markdown import as_markdown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_operators.internals import DagRun

NOTED = "Refused in try "
"""Beginning of the note of a task that refused a night."""
_LONGEST_KEY, _LONGEST_NOTE = 250, 1000  # characters of Airflow's columns
_OURS = "pbg_operators."
_PLAN, _SEARCH = "pbg_operators.plan.PlanOperator", "pbg_operators.tune.TuneStartOperator"
_REFUSED_BY = ", refused by "
log = logging.getLogger(__name__)


@hookimpl
def on_dag_run_running(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001 - Airflow's signature
    """Set the partition key from the form, and a note.

    Lists of runs show and filter by partition keys, but hide their column at first, and not what a form was filled in
    with. A run's page shows the note. It is written before the run's first task. Whether the key is a snapshot follows
    from the DAG's tasks: DAGs of a user's own have any name.
    """
    try:
        if not (forms := [*_forms(dag_run)]):
            return
        if all(forms) and (key := key_of(dag_run.partition_key, dag_run.conf)):
            dag_run.partition_key = key
        named = f"Snapshot {dag_run.partition_key}"
        if dag_run.partition_key and (not dag_run.note or dag_run.note.startswith(f"{named}{_REFUSED_BY}")):
            dag_run.note = named
    except Exception as error:  # noqa: BLE001 - a scheduler goes on without them
        log.warning("run %s of %s does not name its snapshot: %s", dag_run.run_id, dag_run.dag_id, error)


def _forms(dag_run: DagRun) -> Iterator[bool]:
    """Yield whether each task with the run's key reads its form.

    Tasks whose snapshot the DAG itself names are left out: the key means something else there.
    """
    for task in dag_run.dag.task_dict.values() if dag_run.dag is not None else ():
        kind = f"{getattr(task, '_task_module', '')}.{task.task_type}"
        if kind == _SEARCH:
            yield True
        elif kind == _PLAN and getattr(task, "snapshot", "") is None:
            yield getattr(task, "form", False)  # a DAG that an earlier version stored lacks it


def key_of(partition_key: str | None, conf: object) -> str | None:
    """Return the missing key of a run; None where nothing is missing."""
    snapshot = conf.get("snapshot") if isinstance(conf, dict) else None
    if partition_key or not isinstance(snapshot, str):
        return None
    return snapshot if len(snapshot) <= _LONGEST_KEY else None


@hookimpl
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001 - Airflow's signature
    """Write a refusal into the notes of its task and run.

    Airflow has one state for a night that was refused and one that broke. Notes of a user's own stay, and so do other
    tasks with an XCom of this key. A task that is cleared keeps the note of its last refusal, which counts its tries.
    Airflow shows notes as Markdown.
    """
    try:
        from sqlalchemy.orm import object_session

        from pbg_operators.plugin.attempts import refusals  # only the scheduler needs the models

        session, tasks = object_session(dag_run), dag_run.dag.task_dict if dag_run.dag is not None else {}
        for task, sentence in refusals(session, dag_run) if session is not None else ():
            if not getattr(tasks.get(task.task_id), "_task_module", "").startswith(_OURS):
                continue
            if not task.note or task.note.startswith(NOTED):
                task.note = f"{NOTED}{task.try_number}: {as_markdown(sentence)}"[:_LONGEST_NOTE]
            if dag_run.note == f"Snapshot {dag_run.partition_key}":
                dag_run.note = f"{dag_run.note}{_REFUSED_BY}{task.task_id}"
    except Exception as error:  # noqa: BLE001 - a scheduler goes on without them
        log.warning("run %s of %s has no notes of refusals: %s", dag_run.run_id, dag_run.dag_id, error)
