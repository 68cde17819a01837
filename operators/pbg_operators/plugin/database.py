"""Queries of the pages to Airflow's database.

They find the run that a DAG run planned, and the DAGs that exist.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from pbg_operators.internals import DagRun, DagTag, SerializedDagModel, TaskInstance, XComModel, create_session
from pbg_tasks.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from sqlalchemy.orm import Session

PLAN = "prepare.plan"
TAG, BROKEN = "reembed", "broken"
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
        store: of that graph. Only the DAG's file decides on both.
    """

    run: str
    graph: str
    store: str


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
    return _planned(dag_id, query.order_by(DagRun.id.desc()).limit(_LOOKED_AT), f"DAG {dag_id!r}")


def graph_dags(readable: Collection[str]) -> dict[str, str]:
    """Return those DAGs that embed a graph, each with its graph's tag.

    A graph spec that is broken has a DAG, too, and ``BROKEN`` for its tag.
    """
    found: dict[str, str] = {}
    with create_session(scoped=False) as session:
        for dag_id in sorted({*tagged(session, TAG)} & {*readable}):
            tags = set(session.scalars(select(DagTag.name).where(DagTag.dag_id == dag_id)).all()) - {TAG}
            found[dag_id] = BROKEN if BROKEN in tags else min(tags, default=dag_id)
    return found


def _results(dag_id: str) -> Any:  # noqa: ANN401 - a query of SQLAlchemy's
    """Select the task's results, with the version of its DAG."""
    task = (
        (TaskInstance.dag_id == XComModel.dag_id)
        & (TaskInstance.run_id == XComModel.run_id)
        & (TaskInstance.task_id == XComModel.task_id)
        & (TaskInstance.map_index == XComModel.map_index)
    )
    of_plan = (XComModel.dag_id == dag_id) & (XComModel.task_id == PLAN) & (XComModel.key == "return_value")
    return select(XComModel.value, TaskInstance.dag_version_id).join(TaskInstance, task).where(of_plan)


def _planned(dag_id: str, query: Any, what: str) -> list[Planned]:  # noqa: ANN401 - a query of SQLAlchemy's
    with create_session(scoped=False) as session:
        found = []
        for value, version in session.execute(query).all():
            result = decoded(value)
            if isinstance(result, dict) and isinstance(result.get("run"), str):
                found.append(Planned(result["run"], *_place(session, dag_id, version)))
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


def place_of(session: Session, dag_id: str) -> tuple[str, str]:
    """Return graph and store of the latest version of a DAG."""
    return _place(session, dag_id, None)


def latest_place(dag_id: str) -> tuple[str, str]:
    """Return the same; for callers without a session."""
    with create_session(scoped=False) as session:
        return place_of(session, dag_id)


def source_of(dag_id: str) -> str:
    """Return the ``snapshots`` of a DAG's graph as JSON.

    It is empty where an earlier version made the DAG.
    """
    with create_session(scoped=False) as session:
        return str(_plan_of(session.scalar(SerializedDagModel.latest_item_select_object(dag_id))).get("source") or "")  # type: ignore[no-untyped-call]


def tagged(session: Session, tag: str) -> list[str]:
    """Return the ids of the DAGs with a tag, in order."""
    return sorted(session.scalars(select(DagTag.dag_id).where(DagTag.name == tag)).all())


def _place(session: Session, dag_id: str, version: UUID | None) -> tuple[str, str]:
    """Return graph and store of a version of a DAG.

    For a version that was stored without them, they are those of the latest.
    """
    of_version = select(SerializedDagModel).where(SerializedDagModel.dag_version_id == version)
    latest = SerializedDagModel.latest_item_select_object(dag_id)  # type: ignore[no-untyped-call]
    for query in (of_version, latest):
        fields = _plan_of(session.scalar(query))
        if fields.get("graph") and fields.get("store"):
            return str(fields["graph"]), str(fields["store"])
    return "", ""


def _plan_of(stored: SerializedDagModel | None) -> dict[str, Any]:
    """Return the fields of the task ``plan`` of a stored DAG."""
    tasks = (stored.data or {})["dag"]["tasks"] if stored is not None else []
    return next((task["__var"] for task in tasks if task["__var"]["task_id"] == PLAN), {})
