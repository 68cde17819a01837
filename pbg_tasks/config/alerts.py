"""Notifications about a graph's nights, and the deadline of a release."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator, model_validator

from pbg_tasks.config.base import Frozen

Occasion = Literal["failed", "refused", "warned", "published", "late"]
_TIME = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
_CLASS_PATH = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+$"


class Deadline(Frozen):
    """Time by which the night's release is expected.

    Attributes:
        at: time of the day, ``HH:MM``: the next one after the night begins.
        timezone: of ``at``, an IANA name.
    """

    at: Annotated[str, Field(pattern=_TIME)]
    timezone: str = "UTC"

    @field_validator("at", mode="before")
    @classmethod
    def _quoted(cls, value: object) -> object:
        """Refuse what is no time."""
        return _matching(value, _TIME, 'takes a time HH:MM in quotes, such as "06:00"')

    @model_validator(mode="after")
    def _known(self) -> Self:
        check_timezone(self.timezone)
        return self

    @property
    def time(self) -> time:
        """Time of the day."""
        return time.fromisoformat(self.at)

    def after(self, moment: datetime) -> datetime:
        """Return the first deadline after a moment.

        Its time is that of the clocks in the timezone, also where they show an hour twice, or leave one out.
        """
        zone = ZoneInfo(self.timezone)
        local = moment.astimezone(zone)
        day = local.date() + timedelta(days=self.time <= local.time())
        return datetime.combine(day, self.time, zone).replace(fold=local.fold)


class Notifier(Frozen):
    """An Airflow notifier that is called on some occasions.

    Attributes:
        use: class path of the notifier.
        on: ``failed``: a night has failed, for whatever reason; ``refused``: a gate refused one, and a person may be
            asked; ``warned``: a gate let one pass with warnings; ``published``: the channel moved; ``late``: the
            deadline has passed.
        arguments: of the notifier, templated as its class defines; ``pbg.graph``, ``pbg.occasion`` and ``pbg.text`` are
            available.
    """

    use: Annotated[str, Field(pattern=_CLASS_PATH)]
    on: Annotated[tuple[Occasion, ...], Field(min_length=1)] = ("failed", "refused", "warned", "late")
    arguments: dict[str, Any] = Field(default_factory=dict)

    @field_validator("use", mode="before")
    @classmethod
    def _class_path(cls, value: object) -> object:
        return _matching(
            value, _CLASS_PATH, "takes a class path, such as airflow.providers.smtp.notifications.smtp.SmtpNotifier"
        )


def check_timezone(name: str) -> None:
    """Refuse a name that is no timezone's.

    Raises:
        ValueError: it is none; the message names it.
    """
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # a folder of zones, such as Europe, is no file
        raise ValueError(f"timezone {name!r} is no IANA name such as Europe/Berlin") from None


def _matching(value: object, pattern: str, rule: str) -> object:
    """Return a text of a form.

    Raises:
        ValueError: it is no text, or of another form; the message has the rule and the value.
    """
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise ValueError(f"{rule}, not {value!r}")
    return value
