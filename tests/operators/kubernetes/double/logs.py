"""Selection of the requested lines of a log."""

from __future__ import annotations

from datetime import UTC, datetime


def since(line: str, start: str) -> bool:
    """Return whether a line is from ``start``'s second or later.

    The API takes that time to the second only.
    """
    return _second(line.partition(" ")[0]) >= _second(start)


def _second(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC).replace(microsecond=0)
