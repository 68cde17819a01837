"""``PublishedBy``: a reference of Airflow's deadline alerts.

It is the time by which a night's release is expected.
"""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any, Self

from pbg_operators.internals import BaseDeadlineReference
from pbg_tasks.config.alerts import Deadline

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy.orm import Session


class PublishedBy(BaseDeadlineReference):
    """Next time of a day after a run was due.

    Airflow's own references count from a run's logical date, which runs of snapshots do not have, or from the time when
    it was queued, which moves the deadline of a night that begins late. A backfill has no deadline.

    Args:
        at: time of the day, ``HH:MM``.
        timezone: of ``at``.
    """

    required_kwargs = frozenset({"dag_id", "run_id"})

    def __init__(self, at: str = "00:00", timezone: str = "UTC") -> None:
        self.deadline = Deadline(at=at, timezone=timezone)

    def serialize_reference(self) -> dict[str, Any]:
        """Return the data from which the scheduler makes the same reference."""
        return {**super().serialize_reference(), "at": self.deadline.at, "timezone": self.deadline.timezone}

    @classmethod
    def deserialize_reference(cls, reference_data: dict[str, Any]) -> Self:
        """Return the reference of data from ``serialize_reference``."""
        return cls(reference_data["at"], reference_data["timezone"])

    def _evaluate_with(self, *, session: Session, dag_id: str, run_id: str) -> datetime | None:
        """Return a run's deadline, for the scheduler that makes the run."""
        from sqlalchemy import select

        from pbg_operators.internals import DagRun, DagRunType

        which = (DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        run_type, due = session.execute(select(DagRun.run_type, DagRun.run_after).where(*which)).one()
        # In UTC, because Airflow adds an interval: of an hour that comes twice, the sum would be the first.
        return None if run_type == DagRunType.BACKFILL_JOB else self.deadline.after(due).astimezone(UTC)
