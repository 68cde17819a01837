"""Progress of long work on stderr: share done, rate, time left.

On a terminal there is a bar for each work, in a notebook one line below the cell, elsewhere a line at intervals. A work
of many parts, such as a training with its epochs, has one bar for all of them.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self

from pbg_tasks.advice import with_spec
from pbg_tasks.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import rich.progress

_SMALL = 0.01


def human_count(value: float) -> str:
    """Write a count with three significant digits: ``1234567`` -> ``1.23 M``."""
    for factor, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if round(abs(value) / factor, 3) >= 1:  # 999,600 is 1 M, not 1e+03 k
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def counted(count: int, noun: str) -> str:
    """Write a count with its noun: ``1 file``, ``2 files``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def fraction(value: float) -> str:
    """Write a figure near 0 to 1, such as an MRR.

    It has four decimals, or three significant digits below 0.01: among millions of entities, an MRR is that small.
    """
    return f"{value:.4f}" if value == 0 or abs(value) >= _SMALL or not math.isfinite(value) else f"{value:.3g}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines, with columns aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def human_seconds(seconds: float) -> str:
    """Write a duration as ``h:mm:ss`` or ``m:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def say(text: str) -> None:
    """Print a line for people on stderr, without credentials of its URLs.

    Standard output is kept for results. In a notebook, which shows stderr as an error, the line takes the place of the
    one before, and warnings are printed.
    """
    line = f"{time.strftime('%H:%M:%S')} {redacted(with_spec(text))}\n"
    if text.startswith("warning") and _CELLS.shell() is not None:
        sys.stdout.write(line)
    elif not _CELLS.showed(line.rstrip()) and not _BARS.printed(line):
        sys.stderr.write(line)
        sys.stderr.flush()


_NOTED: ContextVar[set[str] | None] = ContextVar("noted", default=None)
"""Notes that this command has printed; None outside of commands."""


@contextmanager
def noting_once() -> Iterator[None]:
    """Print each note once while a command runs.

    It may read a spec more than once.
    """
    token = _NOTED.set(set())
    try:
        yield
    finally:
        _NOTED.reset(token)


def note(text: str) -> None:
    """Print a line for people, once in a command."""
    printed = _NOTED.get()
    if printed is None or text not in printed:
        say(text)
    if printed is not None:
        printed.add(text)


class Cells:
    """Line of progress below the running cell of a notebook.

    It is written anew in place, so that an hour of training does not fill the notebook.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cell: int | None = None
        self._shown: Any = None

    @staticmethod
    def shell() -> Any:  # noqa: ANN401 - of a package that may be missing
        """Return the shell of a notebook; None elsewhere."""
        found = sys.modules.get("IPython")
        shell = None if found is None else found.get_ipython()
        return shell if hasattr(shell, "kernel") else None

    def showed(self, line: str) -> bool:
        """Replace the line; return False outside notebooks."""
        if (shell := self.shell()) is None:
            return False
        from IPython.display import display

        with self._lock:
            if self._cell != shell.execution_count:
                self._cell = shell.execution_count
                self._shown = display({"text/plain": line}, raw=True, display_id=True)
            else:
                self._shown.update({"text/plain": line}, raw=True)
        return True


class Bars:
    """Bars of the work in progress, below the lines of a terminal.

    Nothing is drawn where stderr is no terminal. Works of several threads may overlap.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shown: rich.progress.Progress | None = None
        self._works = 0

    def begin(self, what: str, total: int | None, done: int) -> rich.progress.TaskID | None:
        """Draw one more bar; None where there is no terminal."""
        if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            return None
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        with self._lock:
            if self._shown is None:
                columns = (BarColumn(), TaskProgressColumn(), TextColumn("ETA"), TimeRemainingColumn())
                text = TextColumn("{task.description}", markup=False)
                figures = TextColumn("{task.fields[figures]}", markup=False)
                console = Console(stderr=True, highlight=False, soft_wrap=True)
                self._shown = Progress(text, *columns, figures, console=console, transient=True, redirect_stdout=False)
                self._shown.start()
            self._works += 1
            return self._shown.add_task(redacted(what), total=total or None, completed=done, figures="")

    def move(self, bar: rich.progress.TaskID, done: int, total: int | None, figures: str) -> None:
        """Draw a bar anew."""
        if (shown := self._shown) is not None:
            shown.update(bar, completed=done, total=total or None, figures=redacted(figures))

    def end(self, bar: rich.progress.TaskID) -> None:
        """Remove a bar; with the last one the terminal is as before."""
        with self._lock:
            if self._shown is None:
                return
            self._shown.remove_task(bar)
            self._works -= 1
            if not self._works:
                self._shown.stop()
                self._shown = None

    def printed(self, line: str) -> bool:
        """Print a line above the bars; False where there are none."""
        shown = self._shown
        if shown is None:
            return False
        shown.console.print(line, end="", markup=False, emoji=False)
        return True


_BARS = Bars()
_CELLS = Cells()
_CELL_SECONDS = 1.0
"""Seconds between two lines in a notebook, at least."""


class Progress:
    """Counter that prints a line at intervals, and mostly at its end.

    On a terminal a bar takes the place of the lines at intervals, between the beginning and the end of its block.

    Args:
        what: title of the work, e.g. ``"train epoch 3/10"``.
        total: amount of work, in ``unit``; None where it is not known.
        unit: name of the counted things, in the plural.
        begun: amount that was done before, which counts for no rate.
        whole: work that this is a part of. Its bar, or line of a cell, is shown; lines elsewhere are about the part.
        interval: seconds between two lines, at least.
        clock: monotonic seconds.
        out: receives each finished line.
        ends: whether the end is a line, too; False where the caller reports it. It may change until then.
    """

    def __init__(
        self,
        what: str,
        total: int | None = None,
        unit: str = "edges",
        *,
        begun: int = 0,
        whole: Progress | None = None,
        interval: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        out: Callable[[str], None] = say,
        ends: bool = True,
    ) -> None:
        self.what, self.total = what, total
        self.unit, self.ends = unit, ends
        self.done = self._begun = begun
        self._whole, self._held = whole, ""
        self._in_cell = out is say and Cells.shell() is not None
        self._interval, self._clock = min(interval, _CELL_SECONDS) if self._in_cell else interval, clock
        self._out = out
        self._start = self._last = self._noted = clock()
        self._figures = ""
        self._bar: rich.progress.TaskID | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the work began."""
        return self._clock() - self._start

    @property
    def rate(self) -> float:
        """Units a second since the work began."""
        return (self.done - self._begun) / max(self.seconds, 1e-9)

    def _amount(self, value: float) -> str:
        return f"{human_count(value)}{'' if self.unit == 'B' else ' '}{self.unit}"

    def advance(self, count: int, **figures: float) -> None:
        """Count units as done, and print a line if due.

        Args:
            count: units that were done since the last call.
            **figures: of this moment, at the end of the line, such as ``recent_loss=0.3``; the last line is without.
        """
        self.done += count
        if figures:
            self._figures = "".join(f"  {name.replace('_', ' ')} {value:.4g}" for name, value in figures.items())
        if self._whole is not None and self._whole.moved(count, f"{self._figures}  {self.what}"):
            return
        if self._bar is not None:
            self.moved(0, self._figures)
        else:
            self._line_if_due()

    def moved(self, count: int, figures: str) -> bool:
        """Count units; return whether a bar or cell shows them."""
        self.done += count
        self._figures = figures
        if self._bar is not None:
            _BARS.move(self._bar, self.done, self.total, f"{self._amount(self.rate)}/s{figures}")
        elif self._in_cell:
            self._line_if_due()
        return self._bar is not None or self._in_cell

    def _line_if_due(self) -> None:
        if self._clock() - self._last >= self._interval:
            self._last = self._clock()
            self._out(self.line())

    def note(self, text: str) -> None:
        """Print a line about a part that is done.

        They are an interval apart, and the last one; without a bar also the first one.
        """
        self._held = text
        is_first = self._bar is None and self._noted == self._start
        if is_first or self._clock() - self._noted >= self._interval:
            self._print_held()

    def _print_held(self) -> None:
        if self._held:
            self._out(self._held)
            self._held, self._noted = "", self._clock()

    def line(self) -> str:
        """Return a line about the present state."""
        rate = f"{self._amount(self.rate)}/s"
        if not self.total:
            return f"{self.what}: {self._amount(self.done)}, {rate}{self._figures}"
        share = self.done / self.total
        eta = human_seconds((self.total - self.done) / self.rate) if self.rate else "?"
        done = f"{human_count(self.done)} of {self._amount(self.total)} ({share:.0%})"
        return f"{self.what}: {done}, {rate}, ETA {eta}{self._figures}"

    def __enter__(self) -> Self:
        if self._out is say and self._whole is None:
            self._bar = _BARS.begin(self.what, self.total, self.done)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            _BARS.end(self._bar)
            self._bar = None
        self._print_held()
        if kind is None and self.ends:
            done = f"{self._amount(self.done)} in {human_seconds(self.seconds)}"
            self._out(f"{self.what}: done, {done}, {self._amount(self.rate)}/s")
