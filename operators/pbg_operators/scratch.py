"""Local directory for the temporary files of a DAG run's tasks.

It is made before the first task and removed after the last.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from airflow.sdk import get_current_context

SCRATCH = "{{ ti.xcom_pull(task_ids='make_scratch') }}"
"""Template of the directory's path."""


def scratch_path(dag_id: str, run_id: str) -> Path:
    """Return the directory of a DAG run.

    It is below ``PBG_SCRATCH`` of the worker, or below its temporary directory.
    """
    root = Path(os.environ.get("PBG_SCRATCH") or tempfile.gettempdir())
    return root / "pbg" / _name(dag_id) / _name(run_id)


def _name(identifier: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", identifier).lstrip(".")


def make_scratch() -> str:
    """Make the directory.

    On another machine, the operators make it when they need it; there, each command removes its own files.
    """
    path = _of_this_run()
    path.mkdir(parents=True, exist_ok=True)
    return str(path)


def remove_scratch() -> None:
    """Remove the directory with the files that killed commands left."""
    shutil.rmtree(_of_this_run(), ignore_errors=True)


def _of_this_run() -> Path:
    run = get_current_context()["dag_run"]
    return scratch_path(run.dag_id, run.run_id)
