from __future__ import annotations

import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pbg_tasks.config.alerts import Deadline
from pbg_tasks.config.base import parse
from pbg_tasks.config.documents import parse_document
from pbg_tasks.config.nights import Nights, snapshot_folder, snapshot_order
from pbg_tasks.errors import ConfigError


@pytest.mark.parametrize(
    "keys",
    [
        ["2025-12-31", "2026-01-01", "2026-01-01T06:00", "2026-02-01"],
        ["20251231", "20260101"],
        ["v1", "v9", "v10", "v10.2", "v10.11"],
        ["7", "day-1", "day-02", "day-2", "first"],
    ],
)
def test_keys_are_ordered_by_time_and_number(keys):
    shuffled = random.Random(0).sample(keys, len(keys))
    assert sorted(shuffled, key=snapshot_order) == keys


@pytest.mark.parametrize(
    ("nights", "said"),
    [
        ({"calendar": {"cron": "0 2 * *"}}, "has not the five fields"),
        ({"calendar": {"cron": "0 2 * * *", "timezone": "Mars/Base"}}, "no IANA name"),
        ({"calendar": {"cron": "0 2 * * *", "timezone": "Europe"}}, "timezone 'Europe' is no IANA name"),
        ({"calendar": {"cron": "0 2 * * *", "key_format": "%Y/%m/%d"}}, "no snapshot key"),
        *(
            ({"calendar": {"cron": "0 2 * * *", "key_format": key_format}}, f"'{earlier}' and then '{later}', which")
            for key_format, earlier, later in (
                ("%d-%m-%Y", "26-11-2026", "03-12-2026"),
                ("%m-%d-%Y", "12-31-2026", "01-07-2027"),
                ("%Y-%b-%d", "2026-Nov-26", "2026-Dec-03"),
                ("d%-j", "d365", "d7"),
            )
        ),
        ({"calendar": {"cron": "0 25 * * *"}}, r"cron '0 25 \* \* \*': hour 25 is not from 0 to 23"),
        ({"calendar": {"cron": "5-60/5 2 * * *"}}, "minute 60 is not from 0 to 59"),
        ({"calendar": {"cron": "0 2 0,15 * *"}}, "day 0 is not from 1 to 31"),
        ({"calendar": {"cron": "0 2h * * *"}}, "hour '2h' holds 'h', which is none of its words"),
        ({"collect": {"cron": "0 2 * 13 *"}}, "month 13 is not from 1 to 12"),
        ({"walk": "independent", "first": "d1"}, "first has no meaning"),
        ({"walk": "chian"}, "walk"),
        ({"parallel": 0}, "parallel"),
        ({"watch": {"complete": "always"}}, "watch.complete"),
        ({"watch": {"since": "a/b"}}, "watch.since"),
        ({"deadline": {"at": "6:00"}}, """deadline.at: takes a time HH:MM in quotes, such as "06:00", not '6:00'"""),
        ({"deadline": {"at": 600}}, "deadline.at: takes a time HH:MM in quotes"),
        ({"notify": [{"use": "SmtpNotifier"}]}, "notify.0.use: takes a class path, such as airflow.providers."),
        ({"deadline": {"at": "06:00", "timezone": "Mars/Base"}}, "no IANA name"),
        ({"notify": [{"use": "os; import sys"}]}, "notify.0.use"),
        ({"notify": [{"use": "a.b.C", "on": []}]}, "notify.0.on"),
        ({"notify": [{"use": "a.b.C", "on": ["lost"]}]}, "notify.0.on"),
        ({"collect": {"cron": "@daily"}}, "has not the five fields"),
        ({"collect": {"grace_hours": 0}}, "collect.grace_hours"),
    ],
)
def test_contradictions_are_refused(nights, said):
    with pytest.raises(ConfigError, match=said):
        parse(Nights, nights, source="graph.yaml: nights")


@pytest.mark.parametrize("cron", ["*/15 0-23/2 L JAN-mar,12 7", "0 2 1,31 * mon-FRI", "0 2 * * 5#3", "0 2 * * L5"])
def test_calendar_takes_words_steps_and_lists(cron):
    assert parse(Nights, {"calendar": {"cron": cron}}, source="nights").calendar.cron == cron


@pytest.mark.parametrize("key_format", ["%Y%m%d", "%y-%-m-%-d", "%G-W%V", "%Y-%V", "%Y-%U", "%Y.%j", "%Y-%m-%dT%H"])
def test_calendar_takes_keys_that_rise(key_format):
    calendar = {"cron": "0 2 * * *", "key_format": key_format}
    assert parse(Nights, {"calendar": calendar}, source="nights").calendar.key_format == key_format


@pytest.mark.parametrize(
    ("at", "zone", "after", "moment"),
    [
        ("06:00", "UTC", "2026-11-21T02:00", "2026-11-21T06:00"),
        ("06:00", "UTC", "2026-11-21T06:00", "2026-11-22T06:00"),
        ("06:00", "UTC", "2026-11-21T23:59", "2026-11-22T06:00"),
        ("06:00", "Europe/Berlin", "2026-11-21T02:00", "2026-11-21T05:00"),
        ("06:00", "America/New_York", "2026-11-21T02:00", "2026-11-21T11:00"),
        ("06:00", "Europe/Berlin", "2026-03-28T23:30", "2026-03-29T04:00"),  # the night when clocks go forward
        ("02:30", "Europe/Berlin", "2026-03-29T00:00", "2026-03-29T01:30"),  # they go from 02:00 to 03:00
        ("02:30", "Europe/Berlin", "2026-03-29T01:00", "2026-03-30T00:30"),
        ("02:30", "Europe/Berlin", "2026-10-24T23:00", "2026-10-25T00:30"),  # they go from 03:00 to 02:00
        ("02:45", "Europe/Berlin", "2026-10-25T01:15", "2026-10-25T01:45"),  # where Airflow begins a night of 02:15
        ("02:15", "Europe/Berlin", "2026-10-25T01:30", "2026-10-26T01:15"),
    ],
)
def test_next_deadline_follows_the_clock(at, zone, after, moment):
    found = Deadline(at=at, timezone=zone).after(datetime.fromisoformat(after).replace(tzinfo=UTC))
    assert found.astimezone(UTC) == datetime.fromisoformat(moment).replace(tzinfo=UTC)


def test_night_waits_a_day_by_default():
    assert [Nights(patience_hours=hours).patience for hours in (None, 0.5)] == [
        timedelta(hours=24),
        timedelta(minutes=30),
    ]


def test_notifiers_are_read_as_the_page_has_them():
    page = (Path(__file__).parents[2] / "docs" / "airflow-settings.md").read_text()
    (block,) = re.findall(r"```yaml\n(nights:\n  deadline.*?)```", page, re.DOTALL)
    nights = parse(Nights, parse_document(block.encode(), source="graph.yaml")["nights"], source="graph.yaml: nights")
    assert [notifier.on for notifier in nights.notify] == [("failed", "refused", "warned", "late")]


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ("s3://b/edges/{snapshot}/*.parquet", "s3://b/edges/{snapshot}"),
        ("s3://b/edges/{snapshot}/**/*.tsv", "s3://b/edges/{snapshot}"),
        ("s3://b/edges/{snapshot}", "s3://b/edges/{snapshot}"),
        ("s3://b/edges/{snapshot}/", "s3://b/edges/{snapshot}"),
        ("edges/day={snapshot}/part-?/*.csv", "edges/day={snapshot}"),
        ("edges/day-{snapshot}/edges.csv.gz", "edges/day-{snapshot}"),
        ("edges/{snapshot}.csv", None),
        ("edges/{snapshot}-*.csv", None),
    ],
)
def test_snapshot_folder_contains_the_completeness_marker(location, folder):
    assert snapshot_folder(location) == folder


@pytest.mark.parametrize(
    "nights",
    [
        {"patience_hours": "inf"},
        {"patience_hours": 1e12},
        {"watch": {"quiet_minutes": "inf"}},
        {"watch": {"quiet_minutes": 1e13}},
    ],
)
def test_wait_without_end_is_refused(nights):
    with pytest.raises(ConfigError, match=r"Input should be (a finite number|less than)"):
        parse(Nights, nights, source="nights")
