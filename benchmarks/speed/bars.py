"""Horizontal bars as SVG: median, range of rounds, and target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from benchmarks.quality.plot import ticks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WIDTH, _LABELS, _RIGHT = 920, 430, 60
_TOP, _ROW, _BOTTOM = 12, 24, 44
_NUMBER = 36  # room for the text of a bar's value


@dataclass(frozen=True, slots=True)
class Bar:
    """A named value.

    Attributes:
        name: beside the bar.
        value: its length.
        low: begin of the line across its end.
        high: end of that line.
        target: a mark, or None.
    """

    name: str
    value: float
    low: float
    high: float
    target: float | None = None


def bars(listed: Sequence[Bar], label: str) -> str:
    """Return the bars as an SVG document.

    They stand one below the other, with an axis from 0.
    """
    height = _TOP + _ROW * len(listed) + _BOTTOM
    marks = ticks(0, max(max(bar.high, bar.target or 0) for bar in listed))
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        *_axis(marks, height, label),
    ]
    for row, bar in enumerate(listed):
        parts += _draw(bar, _TOP + _ROW * row, marks[-1])
    return "\n".join([*parts, "</svg>", ""])


def _x(value: float, largest: float) -> float:
    return _LABELS + value / largest * (_WIDTH - _LABELS - _RIGHT)


def _axis(marks: Sequence[float], height: int, label: str) -> Iterator[str]:
    bottom = height - _BOTTOM
    for mark in marks:
        x = _x(mark, marks[-1])
        yield f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{mark:g}</text>'
    x = _x(marks[-1] / 2, marks[-1])
    yield f'<text x="{x:.1f}" y="{bottom + 34}" text-anchor="middle">{escape(label)}; a mark is a target</text>'


def _draw(bar: Bar, top: int, largest: float) -> Iterator[str]:
    low, value, high = (_x(each, largest) for each in (bar.low, bar.value, bar.high))
    middle = top + _ROW / 2
    yield f'<text x="{_LABELS - 8}" y="{middle + 4}" text-anchor="end">{escape(bar.name)}</text>'
    yield (
        f'<rect x="{_LABELS}" y="{top + 4}" width="{value - _LABELS:.1f}" height="{_ROW - 8}" fill="#56B4E9"/>'
        f'<line x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}" stroke="#0072B2" stroke-width="2"/>'
    )
    label = max(value, high)
    if bar.target is not None:
        x, bottom = _x(bar.target, largest), top + _ROW - 1
        label = x if label < x < label + _NUMBER else label
        yield f'<line x1="{x:.1f}" y1="{top + 1}" x2="{x:.1f}" y2="{bottom}" stroke="#D55E00" stroke-width="3"/>'
    yield f'<text x="{label + 6:.1f}" y="{middle + 4}">{bar.value:.3g}</text>'
