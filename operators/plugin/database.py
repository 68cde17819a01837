"""What the pages ask Airflow's database: which run of the package a DAG run made, and which DAGs there are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow.models.dag import DagTag
from airflow.models.dagrun import DagRun
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select

from pbg_tasks.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Collection

PLAN = "prepare.plan"
TAG = "reembed"
_LOOKED_AT = 20


def run_url(dag_id: str, run_id: str) -> str:
    """Return the URL of the run that a DAG run planned.

    Raises:
        NotFoundError: it has not planned one yet.
    """
    return _planned(select(XComModel.value).where(_of_plan(dag_id), XComModel.run_id == run_id), f"run {run_id!r}")


def last_run_url(dag_id: str) -> str:
    """Return the URL of the run that a DAG planned last.

    Raises:
        NotFoundError: it has planned none.
    """
    query = select(XComModel.value).join(DagRun, DagRun.id == XComModel.dag_run_id).where(_of_plan(dag_id))
    return _planned(query.order_by(DagRun.id.desc()).limit(_LOOKED_AT), f"DAG {dag_id!r}")


def graph_dags(readable: Collection[str]) -> list[str]:
    """Return those of some DAGs that embed a graph, by id."""
    with create_session(scoped=False) as session:
        tagged = session.scalars(select(DagTag.dag_id).where(DagTag.name == TAG)).all()
    return sorted(set(tagged) & set(readable))


def _of_plan(dag_id: str) -> Any:  # noqa: ANN401 - a condition of SQLAlchemy's
    return (XComModel.dag_id == dag_id) & (XComModel.task_id == PLAN) & (XComModel.key == "return_value")


def _planned(query: Any, what: str) -> str:  # noqa: ANN401 - a query of SQLAlchemy's
    with create_session(scoped=False) as session:
        values = session.scalars(query).all()
    for value in values:
        result = json.loads(value) if isinstance(value, str) else value
        if isinstance(result, dict) and isinstance(result.get("run"), str):
            return str(result["run"])
    raise NotFoundError(f"{what} has not planned an embedding yet; its page appears once the task {PLAN} is done")
