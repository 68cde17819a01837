"""How a graph walks through its snapshots: their order, what a night continues, and when nights begin."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, model_validator

from pbg_tasks.config.base import Frozen

# A snapshot key becomes part of object keys: no "/", no leading dot.
SNAPSHOT_KEY = r"^[A-Za-z0-9][A-Za-z0-9_.:+-]{0,63}$"
SnapshotKey = Annotated[str, Field(pattern=SNAPSHOT_KEY)]
Walk = Literal["chain", "independent"]
_FIELDS_OF_CRON = 5


def snapshot_order(key: str) -> tuple[tuple[str | int, ...], str]:
    """Return what snapshot keys are sorted by: numbers in them by value, all else as text, so ISO dates by time."""
    parts = re.split(r"([0-9]+)", key)
    return tuple(int(part) if at % 2 else part for at, part in enumerate(parts)), key


class Calendar(Frozen):
    """When Airflow begins a night by itself, and for which snapshot.

    Attributes:
        cron: when, in five fields.
        timezone: of ``cron`` and of the keys, an IANA name.
        offset: how many ticks of ``cron`` the snapshot lies before (negative) or after the tick that begins its night.
        key_format: the snapshot's key from its tick, as ``strftime`` has it.
    """

    cron: str
    timezone: str = "UTC"
    offset: Annotated[int, Field(ge=-366, le=366)] = -1
    key_format: str = "%Y-%m-%d"

    @model_validator(mode="after")
    def _known(self) -> Self:
        if len(self.cron.split()) != _FIELDS_OF_CRON:
            raise ValueError(f"cron {self.cron!r} has not the five fields minute, hour, day, month, weekday")
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError):
            raise ValueError(f"timezone {self.timezone!r} is no IANA name such as Europe/Berlin") from None
        key = datetime(2026, 11, 20, 2, tzinfo=ZoneInfo("UTC")).strftime(self.key_format)
        if not re.fullmatch(SNAPSHOT_KEY, key):
            raise ValueError(f"key_format {self.key_format!r} gives {key!r}, which is no snapshot key")
        return self


class Nights(Frozen):
    """How nights follow each other.

    Attributes:
        walk: ``chain``: each night continues the release of the night before and waits for it; ``independent``: a night
            depends on its snapshot alone, so nights may run in any order and at once.
        first: snapshot with which a chain begins; null: whichever is planned while the channel has no earlier release.
        parallel: how many independent nights run at once.
        patience_hours: how long a night of a chain waits for the night before.
        calendar: when nights begin by themselves; null: by events and by hand only.
    """

    walk: Walk = "chain"
    first: SnapshotKey | None = None
    parallel: Annotated[int, Field(ge=1, le=64)] = 4
    patience_hours: Annotated[float, Field(gt=0)] = 24.0
    calendar: Calendar | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.walk == "independent" and self.first is not None:
            raise ValueError("first has no meaning for walk independent: such nights have no beginning")
        return self
