"""Queries of the pages to Airflow's database.

They find the run that a DAG run planned, and the DAGs that exist.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from pbg_operators.internals import (
    DagModel,
    DagRun,
    DagTag,
    SerializedDagModel,
    TaskInstance,
    XComModel,
    create_session,
)
from pbg_tasks.config.airflow import BROKEN_TAG, CONNECTION, NIGHTS_TAG
from pbg_tasks.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from sqlalchemy.orm import Session

PLAN = "prepare.plan"
"""Id of the task that plans a run; in a task group, the end of its id."""
TAG, BROKEN = NIGHTS_TAG, BROKEN_TAG
ERROR_KEY = "error"  # as in pbg_operators.task, which takes more to import than a page needs
_LOOKED_AT = 20
LONGEST = 2000
"""Most characters of a reason that a page shows."""


@dataclass(frozen=True, slots=True)
class Planned:
    """Run that a task planned, with the DAG's graph and store.

    Attributes:
        run: its URL, as the task returned it: tasks and users of Airflow's API can write any text there.
        graph: name of the graph of the DAG, in the version that planned the run.
        store: of that graph. Only the DAG's file decides on both, and on the connection.
        connection: Airflow connection of that store; None: the process finds its own credentials.
    """

    run: str
    graph: str
    store: str
    connection: str | None = CONNECTION


def planned(dag_id: str, run_id: str) -> list[Planned]:
    """Return the run that a DAG run planned.

    Raises:
        NotFoundError: it has not planned one yet, or could not.
    """
    return _planned(dag_id, _results(dag_id).where(XComModel.run_id == run_id), f"run {run_id!r}")


def last_planned(dag_id: str) -> list[Planned]:
    """Return the last runs that a DAG planned, the newest first.

    Raises:
        NotFoundError: it has planned none.
    """
    query = _results(dag_id).join(DagRun, DagRun.id == XComModel.dag_run_id)
    return _planned(
        dag_id, query.order_by(None).order_by(DagRun.id.desc(), XComModel.task_id).limit(_LOOKED_AT), f"DAG {dag_id!r}"
    )


def graph_dags(readable: Collection[str]) -> dict[str, str]:
    """Return those DAGs that embed a graph, each with its graph.

    A graph spec that is broken has a DAG, too, and ``BROKEN`` for its tag. A DAG that no file makes any more keeps its
    tags in Airflow's database; it is left out, as in Airflow's own list.
    """
    found: dict[str, str] = {}
    with create_session(scoped=False) as session:
        there = session.scalars(select(DagModel.dag_id).where(DagModel.is_stale.is_(False))).all()
        for dag_id in sorted({*tagged(session, TAG)} & {*readable} & {*there}):
            tags = set(session.scalars(select(DagTag.name).where(DagTag.dag_id == dag_id)).all()) - {TAG}
            if BROKEN in tags:
                found[dag_id] = BROKEN
            else:  # only a DAG with tags of its user takes a look at the stored DAG
                found[dag_id] = (min(tags) if len(tags) == 1 else place_of(session, dag_id)[0]) or dag_id
    return found


def is_plan(column: Any) -> Any:  # noqa: ANN401 - a column and a condition of SQLAlchemy's
    """Return the condition that a task plans runs."""
    return (column == PLAN) | column.endswith(f".{PLAN}", autoescape=True)


def of_task() -> Any:  # noqa: ANN401 - a condition of SQLAlchemy's
    """Return the condition that joins results to their tasks."""
    return (
        (TaskInstance.dag_id == XComModel.dag_id)
        & (TaskInstance.run_id == XComModel.run_id)
        & (TaskInstance.task_id == XComModel.task_id)
        & (TaskInstance.map_index == XComModel.map_index)
    )


def _results(dag_id: str) -> Any:  # noqa: ANN401 - a query of SQLAlchemy's
    """Select the task's results, with the version of its DAG."""
    of_plan = (XComModel.dag_id == dag_id) & is_plan(XComModel.task_id) & (XComModel.key == "return_value")
    found = select(XComModel.value, XComModel.task_id, TaskInstance.dag_version_id)
    return found.join(TaskInstance, of_task()).where(of_plan).order_by(XComModel.task_id)


def _planned(dag_id: str, query: Any, what: str) -> list[Planned]:  # noqa: ANN401 - a query of SQLAlchemy's
    with create_session(scoped=False) as session:
        found = []
        for value, task, version in session.execute(query).all():
            result = decoded(value)
            if isinstance(result, dict) and isinstance(result.get("run"), str):
                found.append(Planned(result["run"], *_place(session, dag_id, version, task)))
    if not found:
        raise NotFoundError(f"{what} has not planned an embedding yet; its page appears once the task {PLAN} is done")
    return found


def decoded(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """Return the JSON value of a text; None for other text.

    Users can store any text. Other values are returned as they are.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None


def place_of(session: Session, dag_id: str) -> tuple[str, str, str | None]:
    """Return graph, store and connection of a DAG's latest version."""
    return _place(session, dag_id, None)


def latest_place(dag_id: str) -> tuple[str, str]:
    """Return graph and store; for callers without a session."""
    with create_session(scoped=False) as session:
        return place_of(session, dag_id)[:2]


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Place of a DAG's snapshots.

    Attributes:
        source: the ``snapshots`` of its graph as JSON; empty where an earlier version made the DAG.
        connection: Airflow connection of the store; None: the process finds its own credentials.
        named: whether the DAG itself names the snapshot of a run, which then cannot be chosen.
    """

    source: str
    connection: str | None
    named: bool


def snapshots_of(dag_id: str) -> Snapshots:
    """Return the place of a DAG's snapshots."""
    with create_session(scoped=False) as session:
        fields = _plan_of(session.scalar(SerializedDagModel.latest_item_select_object(dag_id)))  # type: ignore[no-untyped-call]
    return Snapshots(
        source=str(fields.get("source") or ""),
        connection=fields.get("store_conn_id"),  # Airflow stores no None
        named=bool(fields.get("snapshot")),
    )


def tagged(session: Session, tag: str) -> list[str]:
    """Return the ids of the DAGs with a tag, in order."""
    return sorted(session.scalars(select(DagTag.dag_id).where(DagTag.name == tag)).all())


def _place(session: Session, dag_id: str, version: UUID | None, task: str | None = None) -> tuple[str, str, str | None]:
    """Return graph, store and connection of a version of a DAG.

    For a version that was stored without them, they are those of the latest. Without a task, its first plan counts.
    """
    of_version = select(SerializedDagModel).where(SerializedDagModel.dag_version_id == version)
    latest = SerializedDagModel.latest_item_select_object(dag_id)  # type: ignore[no-untyped-call]
    for query in (of_version, latest):
        fields = _plan_of(session.scalar(query), task)
        if fields.get("graph") and fields.get("store"):
            return str(fields["graph"]), str(fields["store"]), fields.get("store_conn_id")  # Airflow stores no None
    return "", "", CONNECTION


def _plan_of(stored: SerializedDagModel | None, task_id: str | None = None) -> dict[str, Any]:
    """Return the fields of a stored DAG's task that plans."""
    tasks = (stored.data or {})["dag"]["tasks"] if stored is not None else []
    plans = (task["__var"] for task in tasks if f".{task['__var']['task_id']}".endswith(f".{PLAN}"))
    return next((fields for fields in plans if task_id in {None, fields["task_id"]}), {})
