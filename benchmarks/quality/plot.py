"""Line plots as SVG, without a library.

They are rows of panels, each with axes, lines and a legend.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from pbg_tasks.progress import human_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WIDTH, HEIGHT = 460, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 34, 44
_TICKS = 5
_MOST_LABELS = 6  # number of ticks that have room along the x axis
_COLUMNS = 3
_LONG = 10_000  # numbers from here on are shortened
_LEGEND_LINE = 16
# Okabe and Ito's colours, which people with any kind of colour vision can distinguish.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Line:
    """A named line; lines of one colour number look alike."""

    name: str
    colour: int
    points: Points


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: above it.
        x_label: below it.
        lines: at least one, with a point at least.
        legend: ``top`` or ``bottom``, where the lines leave room, on the right.
        logarithmic: whether both axes are; values have to be above 0 then.
    """

    title: str
    x_label: str
    lines: Sequence[Line]
    legend: str = "bottom"
    logarithmic: bool = False


def draw(panels: Sequence[Panel]) -> str:
    """Return the panels, three in a row, as an SVG document."""
    width, height = WIDTH * min(len(panels), _COLUMNS), HEIGHT * math.ceil(len(panels) / _COLUMNS)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">']
    parts.append('<rect width="100%" height="100%" fill="white"/>')
    for index, panel in enumerate(panels):
        row, column = divmod(index, _COLUMNS)
        parts += [f'<g transform="translate({WIDTH * column} {HEIGHT * row})">', *_Axes(panel).draw(), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def ticks(low: float, high: float) -> list[float]:
    """Return about ``_TICKS`` round numbers around two values.

    They reach from at most ``low`` to at least ``high``.
    """
    span = (high - low) or abs(high) or 1.0
    magnitude = 10.0 ** math.floor(math.log10(span / _TICKS))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude * _TICKS >= span * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, max(last, first + 1) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten, or of two, around two values.

    Powers of two are used where powers of ten are few. They reach from at most ``low`` to at least ``high``.
    """
    base = 10 if high >= low * 100 else 2
    first, last = math.floor(math.log(low, base) + 1e-9), math.ceil(math.log(high, base) - 1e-9)
    return [float(base) ** number for number in range(first, max(last, first + 1) + 1)]


def _short(value: float) -> str:
    return human_count(value) if abs(value) >= _LONG else f"{value:g}"


class _Axes:
    """Places a panel's values in its frame."""

    def __init__(self, panel: Panel) -> None:
        self._panel = panel
        xs, ys = zip(*(point for line in panel.lines for point in line.points), strict=True)
        if panel.logarithmic:
            self._x_ticks, self._y_ticks = log_ticks(min(xs), max(xs)), log_ticks(min(ys), max(ys))
        else:
            self._x_ticks, self._y_ticks = ticks(0, max(xs)), ticks(min(ys), max(ys))

    def _x(self, value: float) -> float:
        return _LEFT + self._share(value, self._x_ticks) * (WIDTH - _LEFT - _RIGHT)

    def _y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - self._share(value, self._y_ticks) * (HEIGHT - _TOP - _BOTTOM)

    def _share(self, value: float, marks: Sequence[float]) -> float:
        """Return the position of a value along an axis, 0 to 1."""
        low, high = marks[0], marks[-1]
        if self._panel.logarithmic:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return (value - low) / (high - low)

    def draw(self) -> Iterator[str]:
        left, right, bottom = _LEFT, WIDTH - _RIGHT, HEIGHT - _BOTTOM
        for text, baseline in ((self._panel.title, 20), (self._panel.x_label, HEIGHT - 8)):
            yield f'<text x="{(left + right) / 2}" y="{baseline}" text-anchor="middle">{escape(text)}</text>'
        for tick in self._y_ticks:
            y = self._y(tick)
            yield f'<line x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>'
            yield f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(tick)}</text>'
        for tick in self._x_ticks[:: math.ceil(len(self._x_ticks) / _MOST_LABELS)]:
            yield f'<text x="{self._x(tick):.1f}" y="{bottom + 17}" text-anchor="middle">{_short(tick)}</text>'
        yield f'<path d="M{left} {_TOP}V{bottom}H{right}" fill="none" stroke="#444"/>'
        for line in self._panel.lines:
            yield from self._draw_line(line)
        yield from self._legend()

    def _draw_line(self, line: Line) -> Iterator[str]:
        colour = _COLOURS[line.colour % len(_COLOURS)]
        places = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in line.points)
        yield f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"/>'
        if len(line.points) <= 2 * _TICKS:
            for x, y in line.points:
                yield f'<circle cx="{self._x(x):.1f}" cy="{self._y(y):.1f}" r="2.5" fill="{colour}"/>'

    def _legend(self) -> Iterator[str]:
        named = {line.name: line.colour for line in self._panel.lines}
        height = _LEGEND_LINE * len(named)
        top = _TOP + 8 if self._panel.legend == "top" else HEIGHT - _BOTTOM - height - 6
        widest = max(map(len, named)) * 6.6
        x = WIDTH - _RIGHT - widest - 30
        yield (
            f'<rect x="{x - 6:.1f}" y="{top}" width="{widest + 34:.1f}" height="{height + 4}" '
            'fill="white" fill-opacity="0.8"/>'
        )
        for row, (name, number) in enumerate(named.items()):
            y = top + _LEGEND_LINE * row + 11
            colour = _COLOURS[number % len(_COLOURS)]
            yield f'<line x1="{x:.1f}" y1="{y - 4}" x2="{x + 18:.1f}" y2="{y - 4}" stroke="{colour}" stroke-width="3"/>'
            yield f'<text x="{x + 24:.1f}" y="{y}">{escape(name)}</text>'
