"""Warnings of ``plan`` about keys of snapshots."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from pbg_tasks.config.nights import key_form
from pbg_tasks.progress import say

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pbg_tasks.config import GraphSpec
    from pbg_tasks.config.nights import Calendar

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_EVERY_HOUR = ("*", "*/1", "0/1", "0-23")
"""Hours of a cron with which Airflow ticks in both hours of a key; with others it ticks once, by the wall clock."""


def warn_of_calendar(graph: GraphSpec, spec: Path, snapshot: str) -> None:
    """Warn of a calendar that gives no key like a snapshot's.

    The forms of its keys are those of a year of hours, as names of months and weekdays differ in length.
    """
    calendar = graph.nights.calendar
    if calendar is None:
        return
    now = datetime.now(ZoneInfo(calendar.timezone))
    keys = [(now - timedelta(hours=25 * at)).strftime(calendar.key_format) for at in range(366)]
    if key_form(snapshot) not in map(key_form, keys):
        say(
            f"warning: {spec}: nights.calendar.key_format {calendar.key_format!r} gives keys such as {keys[0]!r}, none "
            f"like snapshot {snapshot!r}: nights of the calendar would wait for snapshots that never come; write the "
            "format of the snapshots' names"
        )
    if calendar.cron.split()[1] in _EVERY_HOUR and (key := _key_of_two_hours(calendar)) is not None:
        say(
            f"warning: {spec}: nights.calendar: where clocks in {calendar.timezone} go back, two hours have the key "
            f"{key!r}, and their nights one snapshot; with `timezone: UTC` each hour has its own"
        )


def warn_of_dates(location: str, snapshot: str, uris: Sequence[str]) -> None:
    """Warn of a key that ends within dates of file names."""
    before, _, after = location.partition("{snapshot}")
    dated = re.compile(rf"/{re.escape(before.rpartition('/')[2])}({re.escape(snapshot)}[0-9-]*)")
    days = sorted({found[1][:10] for uri in uris if (found := dated.search(uri)) and _DATE.match(found[1])})
    if days and len(snapshot) < len(days[0]) and "*" in after.partition("/")[0]:
        say(
            f"warning: snapshots.location {location!r}: snapshot {snapshot!r} has the files of {days[0]} to {days[-1]}"
            "; if each day is a snapshot, give it a folder, or let a character follow {snapshot} that none of the keys "
            "holds, as in {snapshot}_*.csv"
        )


def _key_of_two_hours(calendar: Calendar) -> str | None:
    """Return the next key of an hour that comes twice.

    None where there is none within a year, or where keys are those of days.
    """
    zone, begin = ZoneInfo(calendar.timezone), datetime.now(UTC)
    hours = (begin + timedelta(hours=at) for at in range(366 * 24))
    keys = [hour.astimezone(zone).strftime(calendar.key_format) for hour in hours]
    found = zip(keys, keys[1:], keys[2:], keys[3:], strict=False)
    return next((first for before, first, second, after in found if before != first == second != after), None)
