"""``SnapshotTimetable``: calendar whose runs have snapshots as keys."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pbg_operators.internals import CronPartitionTimetable

if TYPE_CHECKING:
    from pendulum import DateTime


class SnapshotTimetable(CronPartitionTimetable):
    """Airflow's timetable of partition keys, which leaves out no day.

    A tick in the hour that clocks skip in spring is its own predecessor to Airflow, up to 3.3.2 at least. So the run of
    that tick had the key of its own day, and no run had that of the day before.
    """

    def _get_prev(self, current: DateTime) -> DateTime:
        before = current
        while (found := super()._get_prev(before)) >= current:
            before -= timedelta(minutes=1)
        return found
