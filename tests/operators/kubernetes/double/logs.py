"""Which lines of a log are asked for."""

from __future__ import annotations

from datetime import UTC, datetime


def since(line: str, start: str) -> bool:
    """Whether a line is from the second of ``start`` or later: the API takes that time to the second only."""
    return _second(line.partition(" ")[0]) >= _second(start)


def _second(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC).replace(microsecond=0)
