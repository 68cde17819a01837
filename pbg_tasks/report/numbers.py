"""Text of figures for people."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from pbg_tasks.config.limits import percent as share_in_percent
from pbg_tasks.progress import fraction

NONE = "–"  # noqa: RUF001 - an en dash, which stands for a missing figure
MINUS = "−"  # noqa: RUF001 - the minus sign, as wide as a plus
_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
_MINUTE, _HOUR = 60, 3600
_STEP = 1000
_SMALL = 0.01
"""Figure below which fixed decimals are no longer exact enough."""


def plain(value: object) -> str:
    """Return a plot's value as text, a gap as a dash."""
    return NONE if value is None or (isinstance(value, float) and not math.isfinite(value)) else str(value)


def count(value: float | None) -> str:
    """Return a whole number with separated thousands: ``1,234,567``."""
    return NONE if value is None else f"{value:,.0f}".replace("-", MINUS)


def signed(value: float | None) -> str:
    """Return a whole number with its sign."""
    return NONE if value is None else f"{value:+,.0f}".replace("-", MINUS)


def score(value: float | None) -> str:
    """Return a figure between 0 and 1, as :func:`fraction`.

    Figures near that range are allowed, too.
    """
    if value is None or not math.isfinite(value):
        return NONE
    return fraction(value).replace("-", MINUS)


def change(value: float | None, unit: str, beside: float | None = None) -> str:
    """Return a difference in ``unit``, with its sign, of 0 a plus.

    Args:
        value: the difference.
        unit: of both figures.
        beside: the later figure; of a small one the difference has as many digits.
    """
    if value is None:
        return NONE
    is_small = beside is not None and abs(beside) < _SMALL
    if unit == "percent":
        text = f"{100 * value:{'+z.2g' if is_small else '+z.1f'}} pp"
    elif unit == "seconds":
        text = ("+" if value >= 0 else "-") + seconds(abs(value))
    else:
        text = f"{value:+z,.0f}" if unit == "count" else f"{value:{'+z.3g' if is_small else '+z.4f'}}"
    return text.replace("-", MINUS)


def percent(value: float | None, digits: int = 1) -> str:
    """Return a share as a percentage; below 1 %, with two digits."""
    if value is None or not math.isfinite(value):
        return NONE
    text = share_in_percent(value).removesuffix("%") if 0 < abs(value) < _SMALL else f"{100 * value:.{digits}f}"
    return f"{text} %".replace("-", MINUS)


def size(value: float | None) -> str:
    """Return bytes in a suitable unit: ``54.9 MB``."""
    if value is None:
        return NONE
    unit = 0
    while round(value) >= _STEP and unit < len(_BYTES) - 1:
        value, unit = value / _STEP, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{value:.3g} {_BYTES[unit]}"


def money(value: float | None) -> str:
    """Return an amount of money; of less than 1, three digits."""
    if value is None:
        return NONE
    return f"{value:,.2f}" if value == 0 or value >= 1 else f"{value:.3g}"


def seconds(value: float | None) -> str:
    """Return a duration in suitable units.

    Examples are ``0.8 s``, ``2 min 05 s``, ``3 h 10 min``.
    """
    if value is None:
        return NONE
    if round(value) < _MINUTE:  # 59.6 s are a minute, not 60 s
        return f"{value:.1f} s" if value < _MINUTE / 6 else f"{value:.0f} s"
    if round(value) < _HOUR:
        minutes, rest = divmod(round(value), _MINUTE)
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(value / _MINUTE), _MINUTE)
    return f"{hours} h {minutes:02d} min"


def rough(value: float | None) -> str:
    """Return a long duration in one unit.

    Examples are ``40 min``, ``7 h``, ``3 days``.
    """
    if value is None:
        return NONE
    for unit, step in (("day", 24 * _HOUR), ("h", _HOUR), ("min", _MINUTE)):
        if value >= 2 * step or (unit == "min" and value >= step):
            amount = round(value / step)
            return f"{amount} {unit}{'s' if unit == 'day' else ''}"
    return f"{max(value, 0):.0f} s"


def moment(value: float | None) -> str:
    """Return a time of the store's clock in UTC, to the minute."""
    return NONE if value is None else datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M")


def isoformat(value: float) -> str:
    """Return a time in ISO format, for machines."""
    return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def in_unit(value: float | None, unit: str) -> str:
    """Return a figure in its unit."""
    return {"count": count, "score": score, "percent": percent, "seconds": seconds, "bytes": size}[unit](value)
