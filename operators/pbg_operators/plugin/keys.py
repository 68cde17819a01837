"""Listener of the scheduler that names the snapshot of each run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pbg_operators.internals import hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_operators.internals import DagRun

_LONGEST = 250  # characters of Airflow's column
_PLAN, _SEARCH = "pbg_operators.plan.PlanOperator", "pbg_operators.tune.TuneStartOperator"
log = logging.getLogger(__name__)


@hookimpl
def on_dag_run_running(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001 - Airflow's signature
    """Set the partition key from the form, and a note.

    Lists of runs show and filter by partition keys, but hide their column at first, and not what a form was filled in
    with. A run's page shows the note. The scheduler stores both with the state of the run, before its first task.
    Whether the key is a snapshot follows from the DAG's tasks: DAGs of a user's own have any name.
    """
    try:
        if not (forms := [*_forms(dag_run)]):
            return
        if all(forms) and (key := key_of(dag_run.partition_key, dag_run.conf)):
            dag_run.partition_key = key
        named = f"Snapshot {dag_run.partition_key}"
        if dag_run.partition_key and (not dag_run.note or dag_run.note.startswith(f"{named}, refused by ")):
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
    return snapshot if len(snapshot) <= _LONGEST else None
