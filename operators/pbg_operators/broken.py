"""DAG that shows the error of a graph spec."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException

from pbg_tasks.config.airflow import BROKEN_TAG, NIGHTS_TAG

if TYPE_CHECKING:
    from pathlib import Path


def broken_dag(path: Path, message: str, dag_id: str | None = None) -> DAG:
    """Make the DAG of a spec that cannot be run.

    Args:
        path: of the spec.
        message: of its error.
        dag_id: of a DAG beside the nights that the spec cannot have; None: it has no DAG at all.
    """
    with DAG(
        dag_id=dag_id or f"broken_{_name(path)}",
        description=message,
        doc_md=f"**{path.name} is not a graph spec that can be run.**\n\n```\n{message}\n```\n",
        schedule=None,
        tags=[*([] if dag_id else [NIGHTS_TAG]), BROKEN_TAG],
    ) as dag:

        @task(retries=0)
        def read_spec() -> None:
            raise AirflowFailException(message)

        read_spec()
    return dag


def _name(path: Path) -> str:
    """Return a file's name as Airflow takes it in an id.

    One that is changed ends with a hash, because two may be changed to the same.
    """
    stem = "".join(letter if letter.isalnum() or letter in "_.-" else "_" for letter in path.stem)
    return stem if stem == path.stem else f"{stem}_{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:6]}"
