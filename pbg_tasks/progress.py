"""Lines on stderr about long work: share done, rate, time left."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

from pbg_tasks.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


def human_count(value: float) -> str:
    """Write a count with three significant digits: ``1234567`` -> ``1.23 M``."""
    for factor, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def human_seconds(seconds: float) -> str:
    """Write a duration as ``h:mm:ss`` or ``m:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def say(text: str) -> None:
    """Print a line for people on stderr, without credentials of its URLs.

    Standard output is kept for results.
    """
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {redacted(text)}\n")
    sys.stderr.flush()


class Progress:
    """Counter that prints a line at intervals and at its end.

    Args:
        what: title of the work, e.g. ``"train epoch 3/10"``.
        total: amount of work, in ``unit``; None where it is not known.
        unit: name of the counted things, in the plural.
        interval: seconds between two lines, at least.
        clock: monotonic seconds.
        out: receives each finished line.
    """

    def __init__(
        self,
        what: str,
        total: int | None = None,
        unit: str = "edges",
        *,
        interval: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        out: Callable[[str], None] = say,
    ) -> None:
        self.what, self.total, self.unit = what, total, unit
        self.done = 0
        self._interval, self._clock, self._out = interval, clock, out
        self._start = self._last = clock()
        self._figures = ""

    @property
    def seconds(self) -> float:
        """Seconds since the work began."""
        return self._clock() - self._start

    @property
    def rate(self) -> float:
        """Units a second since the work began."""
        return self.done / max(self.seconds, 1e-9)

    def advance(self, count: int, **figures: float) -> None:
        """Count units as done, and print a line if due.

        Args:
        count: units that were done since the last call.
        **figures: of this moment, at the end of the line, such as ``recent_loss=0.3``; the last line is without.
        """
        self.done += count
        if figures:
            self._figures = "".join(f"  {name.replace('_', ' ')} {value:.4g}" for name, value in figures.items())
        if self._clock() - self._last >= self._interval:
            self._last = self._clock()
            self._out(self.line())

    def line(self) -> str:
        """Return a line about the present state."""
        counted = f"{human_count(self.done)} {self.unit}"
        rate = f"{human_count(self.rate)} {self.unit}/s"
        if not self.total:
            return f"{self.what}: {counted}, {rate}{self._figures}"
        share = self.done / self.total
        eta = human_seconds((self.total - self.done) / self.rate) if self.done else "?"
        counted = f"{human_count(self.done)} of {human_count(self.total)} {self.unit} ({share:.0%})"
        return f"{self.what}: {counted}, {rate}, ETA {eta}{self._figures}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            counted = f"{human_count(self.done)} {self.unit} in {human_seconds(self.seconds)}"
            self._out(f"{self.what}: done, {counted}, {human_count(self.rate)} {self.unit}/s")
