"""Listener of the scheduler that gives runs a note with their snapshot."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pbg_operators.internals import hookimpl

if TYPE_CHECKING:
    from pbg_operators.internals import DagRun

_LONGEST = 64  # characters of a snapshot's key
_OF_NIGHTS = ("reembed_", "nightly_", "tune_")
log = logging.getLogger(__name__)


@hookimpl
def on_dag_run_running(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001 - Airflow's signature
    """Note the snapshot of a run whose form named it.

    Lists of runs show partition keys and notes, but not what a form was filled in with. The scheduler stores the note
    with the state of the run. A note that a person wrote stays.
    """
    try:
        if text := note_of(dag_run.dag_id, dag_run.partition_key, dag_run.conf, dag_run.note):
            dag_run.note = text
    except Exception as error:  # noqa: BLE001 - a scheduler goes on without a note
        log.warning("no note for run %s of %s: %s", dag_run.run_id, dag_run.dag_id, error)


def note_of(dag_id: str, partition_key: str | None, conf: object, note: str | None) -> str | None:
    """Return the note of a run; None where it needs none."""
    snapshot = conf.get("snapshot") if isinstance(conf, dict) else None
    if note or partition_key or not isinstance(snapshot, str) or not dag_id.startswith(_OF_NIGHTS):
        return None
    return f"Snapshot {snapshot[:_LONGEST]}"
