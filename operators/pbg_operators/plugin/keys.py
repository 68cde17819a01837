"""Listener of the scheduler: the form's snapshot becomes the partition key."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pbg_operators.internals import hookimpl

if TYPE_CHECKING:
    from pbg_operators.internals import DagRun

_LONGEST = 250  # characters of Airflow's column
_OF_NIGHTS = ("reembed_", "nightly_", "tune_")
log = logging.getLogger(__name__)


@hookimpl
def on_dag_run_running(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001 - Airflow's signature
    """Set the partition key of a run whose form named its snapshot.

    Lists of runs show and filter by partition keys, but not what a form was filled in with. The scheduler stores the
    key with the state of the run, before its first task.
    """
    try:
        if key := key_of(dag_run.dag_id, dag_run.partition_key, dag_run.conf):
            dag_run.partition_key = key
    except Exception as error:  # noqa: BLE001 - a scheduler goes on without the key
        log.warning("no partition key for run %s of %s: %s", dag_run.run_id, dag_run.dag_id, error)


def key_of(dag_id: str, partition_key: str | None, conf: object) -> str | None:
    """Return the missing key of a run; None where nothing is missing."""
    snapshot = conf.get("snapshot") if isinstance(conf, dict) else None
    if partition_key or not isinstance(snapshot, str) or not dag_id.startswith(_OF_NIGHTS):
        return None
    return snapshot if len(snapshot) <= _LONGEST else None
