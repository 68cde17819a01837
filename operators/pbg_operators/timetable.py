"""``SnapshotTimetable``: calendar whose runs have snapshots as keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowTimetableInvalid

from pbg_operators.internals import CronPartitionTimetable

if TYPE_CHECKING:
    from pendulum import DateTime


class SnapshotTimetable(CronPartitionTimetable):
    """Airflow's timetable of partition keys, which leaves out no day.

    A tick in the hour that clocks skip in spring is its own predecessor to Airflow, up to 3.3.2 at least. So the run of
    that tick had the key of its own day, and no run had that of the day before.
    """

    def validate(self) -> None:
        """Refuse a schedule that is unreadable, or never comes."""
        super().validate()
        try:
            self._get_next(self.localize_partition_datetime(datetime.now(UTC)))
        except ValueError:
            raise AirflowTimetableInvalid(f"{self.summary!r} names a day that never comes") from None

    def _get_prev(self, current: DateTime) -> DateTime:
        before = current
        while (found := super()._get_prev(before)) >= current:
            before -= timedelta(minutes=1)
        return found
