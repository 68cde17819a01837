"""``SnapshotTimetable``: calendar whose runs have snapshots as keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowTimetableInvalid

from pbg_operators.internals import CronPartitionTimetable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pendulum import DateTime


class SnapshotTimetable(CronPartitionTimetable):
    """Airflow's timetable of partition keys, which leaves out no day.

    A tick in the hour that clocks skip in spring is its own predecessor to Airflow, up to 3.3.2 at least. So the run of
    that tick had the key of its own day, and no run had that of the day before.

    Nor does a backfill take a day before its night is due. Airflow's makes runs of all days to come. Each of them
    begins with its day, before the snapshot is whole, and no other run of that day comes, because Airflow counts the
    calendar's ticks from the last of them on.
    """

    def validate(self) -> None:
        """Refuse a schedule that is unreadable, or never comes."""
        super().validate()
        try:
            self._get_next(self.localize_partition_datetime(datetime.now(UTC)))
        except ValueError:
            raise AirflowTimetableInvalid(f"{self.summary!r} names a day that never comes") from None

    def iter_partition_dagrun_infos(self, *, earliest: datetime, latest: datetime) -> Iterator[Any]:
        """Yield the runs of a backfill, of days whose nights are due.

        Airflow's begin with their days, and its calendar goes on after the time of the last run. With a positive offset
        such a run would wait for its day, and the calendar leave out nights; with a negative one it would begin the
        last night again. Here each run has the tick of its night, as the calendar's have.
        """
        now = self.localize_partition_datetime(datetime.now(self._timezone))
        last = self._get_partition_date(run_date=self._align_to_prev(now))
        step = self._get_prev if self._run_offset > 0 else self._get_next
        for run in super().iter_partition_dagrun_infos(earliest=earliest, latest=latest):
            if run.partition_date is None or run.partition_date > last:
                return
            night = run.run_after
            for _ in range(abs(self._run_offset)):
                night = step(night)
            yield run._replace(run_after=night)

    def _get_prev(self, current: DateTime) -> DateTime:
        before = current
        while (found := super()._get_prev(before)) >= current:
            before -= timedelta(minutes=1)
        return found
