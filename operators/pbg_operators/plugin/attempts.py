"""Queries of the pages for DAG runs that failed or wait."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from pbg_operators.internals import DagModel, DagRun, TaskInstance, XComModel, create_session
from pbg_operators.plugin.database import ERROR_KEY, LONGEST, TAG, decoded, is_plan, of_task, place_of, tagged

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from sqlalchemy.orm import Session

LOOKED_AT = 40
"""Newest runs of a DAG that a page considers, and as many queued ones."""
REFUSED_KEY = "refused"  # as in pbg_operators.task, which takes more to import than a page needs
AWAITING = "awaiting_input"
_KEYS = ("return_value", ERROR_KEY, REFUSED_KEY)
_LONGEST_KEY = 100


@dataclass(frozen=True, slots=True)
class Attempt:
    """Run of a DAG of nights, as Airflow knows it.

    Texts that users can write, such as the conf and XComs, are only ever shown.

    Attributes:
        dag_id: of the DAG.
        run_id: of the DAG run.
        state: of the DAG run, in Airflow's word.
        began: in seconds since 1970; None before it began.
        ended: same; None while it is under way.
        snapshot: what was planned, or else its partition key, or what the form named.
        run: URL of the run that it planned, as its task returned it; any text.
        task: the first task that failed.
        reason: why that task failed, if it was recorded.
        awaiting: tasks that wait for a person.
    """

    dag_id: str
    run_id: str
    state: str
    began: float | None
    snapshot: str | None
    run: str | None = None
    task: str | None = None
    reason: str | None = None
    awaiting: tuple[str, ...] = ()
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a DAG begins its next run; ``at`` in seconds since 1970."""

    dag_id: str
    paused: bool
    at: float | None


def attempts(dag_ids: Collection[str], run_id: str | None = None) -> list[Attempt]:
    """Return the last runs of some DAGs, the newest first.

    Queued ones count for themselves: a backfill makes the runs of all its days at once.

    Args:
        dag_ids: of one graph.
        run_id: of the only DAG run that is asked for; None: all.
    """
    query = select(DagRun).where(DagRun.dag_id.in_(dag_ids))
    query = query if run_id is None else query.where(DagRun.run_id == run_id)
    with create_session(scoped=False) as session:
        states = (DagRun.state == "queued", DagRun.state != "queued")
        last = (query.where(state).order_by(DagRun.id.desc()).limit(LOOKED_AT) for state in states)
        runs = sorted({run for each in last for run in session.scalars(each)}, key=lambda run: -run.id)
        ids = [run.run_id for run in runs]
        tasks = session.execute(
            select(TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.state)
            .where(TaskInstance.dag_id.in_(dag_ids), TaskInstance.run_id.in_(ids))
            .where(TaskInstance.state.in_(("failed", AWAITING)))
            .order_by(TaskInstance.end_date)
        ).all()
        found = session.execute(
            select(XComModel.dag_id, XComModel.run_id, XComModel.task_id, XComModel.key, XComModel.value)
            .where(XComModel.dag_id.in_(dag_ids), XComModel.run_id.in_(ids), XComModel.key.in_(_KEYS))
            .order_by(XComModel.task_id)
            .where((XComModel.key != "return_value") | is_plan(XComModel.task_id))
        ).all()
        by_run: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
        for dag_id, of_run, task, state in tasks:
            by_run[dag_id, of_run].append((task, str(state)))
        # Of several plans of a DAG run the first counts.
        planned = {row[:2]: row[4] for row in reversed(found) if row[3] == "return_value"}
        texts = {tuple(row[:4]): row[4] for row in found} | planned
        return [_attempt(run, by_run[run.dag_id, run.run_id], texts) for run in runs]


def places() -> dict[str, tuple[str, str, str | None]]:
    """Return graph, store and connection of all DAGs of nights."""
    with create_session(scoped=False) as session:
        return {dag_id: place_of(session, dag_id) for dag_id in tagged(session, TAG)}


def siblings(dag_id: str, known: Mapping[str, tuple[str, str, str | None]]) -> list[str]:
    """Return the DAGs with a DAG's graph, store and connection.

    The DAG itself is the first. A calendar and the arrival of snapshots have a DAG each. A DAG that names no graph and
    store is alone.

    Args:
        dag_id: of the DAG.
        known: answer of ``places``.
    """
    if (own := known.get(dag_id)) is None:  # new, or without the tag
        with create_session(scoped=False) as session:
            own = place_of(session, dag_id)
    if not all(own[:2]):
        return [dag_id]
    return [dag_id, *(each for each, place in known.items() if each != dag_id and place == own)]


def refusals(session: Session, run: DagRun) -> list[tuple[TaskInstance, str]]:
    """Return the failed tasks that refused a run, with their sentences."""
    of_run = (TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id, TaskInstance.state == "failed")
    found = select(TaskInstance, XComModel.value).join(XComModel, of_task() & (XComModel.key == REFUSED_KEY))
    rows = session.execute(found.where(*of_run)).all()
    return [(task, text) for task, value in rows if (text := _first_text([value])) is not None]


def schedules(dag_ids: Collection[str]) -> list[Schedule]:
    """Return when some DAGs begin their next runs.

    One that no file makes any more begins none, though Airflow's database keeps its next time.
    """
    with create_session(scoped=False) as session:
        rows = session.execute(
            select(DagModel.dag_id, DagModel.is_paused, DagModel.next_dagrun_create_after).where(
                DagModel.dag_id.in_(dag_ids), DagModel.is_stale.is_(False)
            )
        ).all()
    return [Schedule(dag_id, bool(paused), _seconds(at)) for dag_id, paused, at in rows]


def _attempt(run: Any, tasks: Sequence[tuple[str, str]], texts: Mapping[tuple[str, ...], object]) -> Attempt:  # noqa: ANN401 - a row of Airflow's
    result = decoded(texts.get((run.dag_id, run.run_id)))
    planned, key = (result.get("run"), result.get("snapshot")) if isinstance(result, dict) else (None, None)
    failed = next((task for task, state in tasks if state == "failed"), None)
    reasons = (texts.get((run.dag_id, run.run_id, failed or "", key)) for key in (REFUSED_KEY, ERROR_KEY))
    return Attempt(
        dag_id=run.dag_id,
        run_id=run.run_id,
        state=str(run.state),
        began=_seconds(run.start_date or run.queued_at),
        snapshot=_snapshot(run.partition_key, run.conf, key),
        run=planned if isinstance(planned, str) else None,
        task=failed,
        reason=_first_text(reasons),
        awaiting=tuple(task for task, state in tasks if state == AWAITING),
        ended=_seconds(run.end_date),
    )


def _snapshot(partition_key: str | None, conf: object, planned: object) -> str | None:
    asked = (planned, partition_key, conf.get("snapshot") if isinstance(conf, dict) else None)
    return next((key[:_LONGEST_KEY] for key in asked if isinstance(key, str) and key), None)


def _first_text(values: Iterable[object]) -> str | None:
    """Return the first text; some databases return its JSON."""
    for value in values:
        if isinstance(value, str):
            text = decoded(value)
            return (text if isinstance(text, str) else value)[:LONGEST]
    return None


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
