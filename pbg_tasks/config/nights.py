"""Order and beginning of a graph's nights.

The settings define the order of snapshots, the release that a night continues, and the times at which nights begin.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from pbg_tasks.config.alerts import Deadline, Notifier, check_timezone
from pbg_tasks.config.base import Frozen

# A snapshot key becomes part of object keys, so it has no "/" and no leading dot.
SNAPSHOT_KEY = r"^[A-Za-z0-9][A-Za-z0-9_.:+-]{0,63}$"
SnapshotKey = Annotated[str, Field(pattern=SNAPSHOT_KEY)]
Walk = Literal["chain", "independent"]
Whole = Literal["success", "manifest", "settled"]
SUCCESS = "_SUCCESS"
"""Name of the file that Spark, Hadoop and others write into a folder they have finished."""
MANIFEST = "_manifest.json"
"""Name of the file that lists a folder's files with their sizes and is written last; the exports of this package have
one.
"""
_FIELDS_OF_CRON: dict[str, tuple[int, int, str]] = {
    "minute": (0, 59, ""),
    "hour": (0, 23, ""),
    "day": (1, 31, "l"),
    "month": (1, 12, "jan feb mar apr may jun jul aug sep oct nov dec"),
    "weekday": (0, 7, "sun mon tue wed thu fri sat l"),
}
"""Least and largest number of each field of a cron text, and its words."""


def snapshot_order(key: str) -> tuple[tuple[str | int, ...], str]:
    """Return the sort key of a snapshot key.

    Numbers in it are sorted by value, all else as text, so that ISO dates are sorted by time.
    """
    parts = re.split(r"([0-9]+)", key)
    return tuple(int(part) if at % 2 else part for at, part in enumerate(parts)), key


def key_form(key: str) -> str:
    """Return a snapshot key with a zero for each digit."""
    return re.sub(r"[0-9]", "0", key)


def snapshot_folder(location: str) -> str | None:
    """Return the folder that each snapshot has for itself.

    It has ``{snapshot}`` in it; None when snapshots have no such folder.
    """
    fixed = re.split(r"[*?\[]", location, maxsplit=1)[0]
    is_folder = fixed == location and "." not in location.rpartition("/")[2]
    folder = fixed.rstrip("/") if is_folder else fixed.rpartition("/")[0]
    return folder if "{snapshot}" in folder else None


def _check_cron(cron: str) -> None:
    """Refuse a schedule with values that no field has.

    Airflow judges the rest.
    """
    fields = cron.split()
    if len(fields) != len(_FIELDS_OF_CRON):
        raise ValueError(f"cron {cron!r} has not the five fields {', '.join(_FIELDS_OF_CRON)}")
    for (name, (low, high, words)), field in zip(_FIELDS_OF_CRON.items(), fields, strict=True):
        for number in re.findall(r"(?<![0-9/#])[0-9]+", field):  # neither steps nor the week of a weekday
            if not low <= int(number) <= high:
                raise ValueError(f"cron {cron!r}: {name} {number} is not from {low} to {high}")
        for word in re.findall(r"[a-z]+", field.lower()):
            if word not in words.split():
                raise ValueError(f"cron {cron!r}: {name} {field!r} holds {word!r}, which is none of its words")


def _check_rises(key_format: str) -> None:
    """Refuse keys that go back where a month or a year begins.

    Nights of such a day would be recorded as late ones, and no reader would see them. The days are Thursdays, by which
    also the number of an ISO week is one of its year.
    """
    weeks = (datetime(2026, 11, 5, 2, tzinfo=ZoneInfo("UTC")) + timedelta(weeks=at) for at in range(14))
    for earlier, later in pairwise(week.strftime(key_format) for week in weeks):
        if snapshot_order(later) < snapshot_order(earlier):
            raise ValueError(
                f"key_format {key_format!r} gives {earlier!r} and then {later!r}, which counts as the older snapshot: "
                "the channel would stay where it is; name snapshots by year, month and day in this order, in numbers"
            )


class Calendar(Frozen):
    """Schedule by which Airflow begins nights, and their snapshots.

    Attributes:
        cron: the schedule, in five fields.
        timezone: of ``cron`` and of the keys, an IANA name.
        offset: number of ticks of ``cron`` from the tick that begins a night to that of its snapshot; negative for
            earlier snapshots.
        key_format: format of the snapshot's key from its tick, for ``strftime``.
    """

    cron: str
    timezone: str = "UTC"
    offset: Annotated[int, Field(ge=-366, le=366)] = -1
    key_format: str = "%Y-%m-%d"

    @model_validator(mode="after")
    def _known(self) -> Self:
        _check_cron(self.cron)
        check_timezone(self.timezone)
        key = datetime(2026, 11, 20, 2, tzinfo=ZoneInfo("UTC")).strftime(self.key_format)
        if not re.fullmatch(SNAPSHOT_KEY, key):
            raise ValueError(f"key_format {self.key_format!r} gives {key!r}, which is no snapshot key")
        _check_rises(self.key_format)
        return self


class Watch(Frozen):
    """Rules by which a snapshot that has arrived begins its night.

    ``complete`` applies to every night, however it begins.

    Attributes:
        complete: sign that a snapshot is whole. ``success``: its folder holds ``_SUCCESS``; ``manifest``: its folder
            holds ``_manifest.json`` and every file that this lists; ``settled``: its files stay the same for a while,
            for which only the watch waits.
        quiet_minutes: length of that while, for ``settled``.
        every_seconds: how often the location is listed.
        since: the first snapshot that counts; null: ``first``, else the newest one when the watch begins. In a chain
            with releases the watch begins after the newest one's snapshot, if that is later.
    """

    complete: Whole = "success"
    quiet_minutes: Annotated[float, Field(gt=0, le=5_256_000, allow_inf_nan=False)] = 10.0
    every_seconds: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 60.0
    since: SnapshotKey | None = None


class Collection(Frozen):
    """Schedule and rules of the removal of a channel's old releases.

    They are the options of ``pbg gc``.

    Attributes:
        cron: the schedule, in five fields, UTC.
        keep_releases: number of the newest snapshots whose releases stay.
        keep_days: number of days for which a release stays.
        grace_hours: number of hours for which whatever was written or used stays.
        trust_clock: judge age by the dates of files in a store that is a directory, because the clocks of all machines
            that write to it are right. Needed where collections never run twice on one machine.
    """

    cron: str = "0 12 * * *"
    keep_releases: Annotated[int, Field(ge=0)] = 14
    keep_days: Annotated[float, Field(ge=0)] = 0.0
    grace_hours: Annotated[float, Field(gt=0)] = 72.0
    trust_clock: bool = False

    @model_validator(mode="after")
    def _known(self) -> Self:
        _check_cron(self.cron)
        return self


class Nights(Frozen):
    """Order and beginning of nights.

    Attributes:
        walk: ``chain``: each night continues the release of the night before and waits for it; ``independent``: a night
            depends on its snapshot alone, so nights may run in any order and at once.
        first: snapshot with which a chain begins; null: any that is planned while the channel has no earlier release.
        parallel: how many nights may be under way at once; in a chain, where all but one only wait for the one before,
            it may be more.
        patience_hours: how long a night waits until its snapshot is whole and, in a chain, for the night before; null:
            24, and for a snapshot that the calendar expects no longer than until ``deadline``.
        calendar: schedule by which nights begin; null: by events and by hand only.
        watch: whether a snapshot begins its night when it has arrived; null: it does not.
        deadline: time by which a release is expected, where alerts of ``late`` go out; null: there is none.
        notify: notifications about nights.
        collect: removal of the channel's old releases; null: by hand only.
        redo: whether a chain has a DAG whose form repeats days from a corrected one on.
    """

    walk: Walk = "chain"
    first: SnapshotKey | None = None
    parallel: Annotated[int, Field(ge=1, le=64)] = 4
    patience_hours: Annotated[float, Field(gt=0, le=87_600, allow_inf_nan=False)] | None = None
    calendar: Calendar | None = None
    watch: Watch | None = None
    deadline: Deadline | None = None
    notify: tuple[Notifier, ...] = ()
    collect: Collection | None = None
    redo: bool = False

    @property
    def patience(self) -> timedelta:
        """Longest time that a night waits."""
        return timedelta(hours=self.patience_hours or 24)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.walk == "independent" and self.first is not None:
            raise ValueError("first has no meaning for walk independent: such nights have no beginning")
        if self.walk == "independent" and self.redo:
            raise ValueError("redo has no meaning for walk independent: no night depends on the one before")
        return self
