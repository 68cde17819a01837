"""The calendar of a spec.

The DAG that begins nights by itself, and its backfills in a real Airflow database.
"""

from __future__ import annotations

import logging
from datetime import UTC, date, datetime, time, timedelta

import pendulum
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.decoders import decode_timetable
from airflow.serialization.encoders import encode_timetable
from airflow.timetables.base import TimeRestriction

from pbg_operators.reembed import WAITING, timetable_of
from pbg_operators.timetable import SnapshotTimetable
from pbg_tasks.config.nights import Calendar
from tests.dags.in_process import store_dags
from tests.dags.parsed import CHAIN, DAGS
from tests.operators.specs import spec_file

DAYS = [f"2026-11-{day}" for day in range(10, 15)]


def bag_of(tmp_path, monkeypatch, **nights):
    (tmp_path / "graphs").mkdir()
    spec_file(tmp_path / "graphs", tmp_path, "small", nights=nights)
    monkeypatch.setenv("PBG_GRAPHS", str(tmp_path / "graphs"))
    bag = DagBag(DAGS)
    assert bag.import_errors == {}
    return bag


def test_dag_of_calendar_has_the_same_tasks(tmp_path, monkeypatch):
    calendar = {"cron": "30 1 * * *", "timezone": "Europe/Berlin", "offset": -2, "key_format": "%Y%m%d"}
    bag = bag_of(tmp_path, monkeypatch, calendar=calendar)
    assert set(bag.dags) == {"reembed_small", "nightly_small", "drill_small"}
    nightly = bag.dags["nightly_small"]
    assert [task.task_id for task in nightly.topological_sort() if task.task_id != "report"] == CHAIN
    assert nightly.has_task("report")
    assert isinstance(nightly.timetable, SnapshotTimetable)
    stored = nightly.timetable.serialize()
    assert (stored["run_offset"], stored["key_format"]) == (-2, "%Y%m%d")
    assert not nightly.catchup


@pytest.mark.parametrize("offset", [-2, -1, 0, 1])
@pytest.mark.parametrize(
    ("cron", "timezone", "first"),
    [
        ("0 2 * * *", "Europe/Berlin", date(2026, 3, 26)),
        ("45 2 * * *", "Europe/Berlin", date(2026, 3, 26)),
        ("30 2 * * *", "Europe/Berlin", date(2026, 10, 22)),
        ("0 0 * * *", "Africa/Cairo", date(2026, 4, 21)),
        ("0 0 * * *", "UTC", date(2026, 2, 25)),
    ],
)
def test_calendar_names_each_day_when_clocks_change(cron, timezone, first, offset):
    made = timetable_of(Calendar(cron=cron, timezone=timezone, offset=offset), "spec")
    timetable = decode_timetable(encode_timetable(made))
    runs = []
    begin = pendulum.datetime(first.year, first.month, first.day, tz=timezone)
    for _ in range(7):
        runs.append(
            timetable.next_dagrun_info_v2(
                last_dagrun_info=runs[-1] if runs else None, restriction=TimeRestriction(begin, None, catchup=True)
            )
        )
    days = [first + timedelta(days=day + offset) for day in range(7)]
    assert [run.partition_key for run in runs] == [*map(str, days)]
    earliest, latest = (datetime.combine(day, at, UTC) for day, at in ((days[0], time.min), (days[-1], time.max)))
    assert [*timetable.iter_partition_dagrun_infos(earliest=earliest, latest=latest)] == runs  # of a backfill


@pytest.mark.parametrize("offset", [-2, -1, 0])
def test_backfill_takes_no_day_before_its_night(offset):
    timetable, today = timetable_of(Calendar(cron="0 0 * * *", offset=offset), "spec"), datetime.now(UTC)
    window = {"earliest": today - timedelta(days=5), "latest": today + timedelta(days=5)}
    keys = [run.partition_key for run in timetable.iter_partition_dagrun_infos(**window)]
    assert keys == [str((today + timedelta(days=days)).date()) for days in range(-4, offset + 1)]


@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 2])
def test_calendar_goes_on_after_backfill(offset, behind):
    """The next night is that of the day after the last one."""
    timetable, today = timetable_of(Calendar(cron="0 0 * * *", offset=offset), "spec"), datetime.now(UTC)
    window = {"earliest": today - timedelta(days=5), "latest": today + timedelta(days=5)}
    last = list(timetable.iter_partition_dagrun_infos(**window))[-1 - behind]
    after = timetable.next_dagrun_info_v2(last_dagrun_info=last, restriction=TimeRestriction(None, None, catchup=False))
    assert last.run_after.date() == (today - timedelta(days=behind)).date()
    assert after.partition_key == str((today + timedelta(days=offset + 1 - behind)).date())


def test_graph_without_calendar_has_no_nightly_dag(tmp_path, monkeypatch):
    assert set(bag_of(tmp_path, monkeypatch).dags) == {"reembed_small", "drill_small"}


@pytest.mark.parametrize(
    ("nights", "at_once"),
    [({}, WAITING), ({"parallel": WAITING + 1}, WAITING + 1), ({"walk": "independent"}, 4)],
)
def test_waiting_nights_leave_slot_for_failed_one(tmp_path, monkeypatch, nights, at_once):
    bag = bag_of(tmp_path, monkeypatch, **nights, calendar={"cron": "0 2 * * *"})
    dags = [bag.dags[f"{kind}_small"] for kind in ("reembed", "nightly")]
    assert {dag.max_active_runs for dag in dags} == {at_once}
    # nights that wait for none train no more at once than the spec allows
    training = nights.get("parallel", 4) if nights.get("walk") != "independent" else None
    assert {dag.get_task("train.train").max_active_tis_per_dag for dag in dags} == {training}


def test_unreadable_calendar_breaks_its_graph_only(tmp_path, monkeypatch):
    bag = bag_of(tmp_path, monkeypatch, calendar={"cron": "0 2/0 * * *"})
    assert "nights.calendar.cron" in bag.dags["broken_small"].description


def test_calendar_of_no_day_is_refused(tmp_path, monkeypatch):
    bag = bag_of(tmp_path, monkeypatch, calendar={"cron": "0 2 31 2 *"})
    error = bag.dags["broken_small"].description
    assert "nights.calendar.cron: '0 2 31 2 *' names a day that never comes; write a cron text such as" in error


def test_drill_runs_daily_with_the_spec(tmp_path, monkeypatch):
    dag = bag_of(tmp_path, monkeypatch).dags["drill_small"]
    (task,) = dag.tasks
    assert (task.command, task.arguments) == ("drill", [str(tmp_path / "graphs" / "small.yaml")])
    assert "`pbg drill small.yaml`" in dag.doc_md


class Backfills:
    """Backfills by ``airflow backfill create`` on a separate database.

    Its runs end as the test decides.
    """

    def __init__(self, dag_id):
        self.dag_id = dag_id

    def create(self, how, days=DAYS):
        """Create a backfill of days; return its runs' keys."""
        from airflow.cli.cli_parser import get_parser

        before = len(self.runs())
        arguments = f"backfill create --dag-id {self.dag_id} --from-date {days[0]} --to-date {days[-1]}T23:59:59"
        given = get_parser().parse_args([*arguments.split(), "--max-active-runs", "2", "--reprocess-behavior", how])
        given.func(given)
        return [run.partition_key for run in self.runs()[before:]]

    def runs(self):
        from airflow.models import DagRun
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            return list(session.scalars(select(DagRun).where(DagRun.dag_id == self.dag_id).order_by(DagRun.id)))

    def finish(self, *, failed):
        from airflow.models import DagRun
        from airflow.models.backfill import Backfill
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            for run in session.scalars(select(DagRun).where(DagRun.state == "queued")):
                run.state = "failed" if run.partition_key == failed else "success"
            for backfill in session.scalars(select(Backfill)):
                backfill.completed_at = datetime.now(UTC)


@pytest.fixture
def backfills(tmp_path, monkeypatch):
    logging.getLogger("alembic").setLevel(logging.WARNING)
    store_dags(bag_of(tmp_path, monkeypatch, calendar={"cron": "0 2 * * *"}))
    made = Backfills("nightly_small")
    yield made
    made.finish(failed=None)  # Airflow has one backfill of a DAG at a time


def test_backfills_of_range_make_expected_runs(backfills):
    assert backfills.create("none") == DAYS
    assert {run.run_type for run in backfills.runs()} == {"backfill"}
    backfills.finish(failed=DAYS[2])
    assert backfills.create("none") == []
    backfills.finish(failed=None)
    assert backfills.create("failed") == [DAYS[2]]
    backfills.finish(failed=None)
    assert backfills.create("completed") == DAYS


def test_backfill_leaves_out_days_to_come(backfills):
    """The night of a day is due on the next, at two."""
    due = (datetime.now(UTC) - timedelta(hours=26)).date()
    days = [str(due + timedelta(days=number)) for number in range(-2, 4)]
    assert backfills.create("none", days) == days[:3]
