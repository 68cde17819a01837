"""Rounds taken in turns, and the measurements made of them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Round:
    """One piece of timed work.

    Attributes:
        value: result of the worker's method: the amount of work, or another one that the benchmark requests.
        cpu: CPU seconds of the process and all it started.
        wall: seconds.
        peak: most bytes the process has had resident so far.
    """

    value: Any
    cpu: float
    wall: float
    peak: int


def per_cpu_second(done: Round) -> float:
    """Return the units of work a CPU second."""
    return float(done.value / done.cpu)


def cpu_seconds(done: Round) -> float:
    """Return the CPU seconds."""
    return done.cpu


def per_second(done: Round) -> float:
    """Return the units of work a second."""
    return float(done.value / done.wall)


def in_turns(count: int, sides: Mapping[str, Callable[[], Round]], *, warm_up: bool = True) -> dict[str, list[Round]]:
    """Take rounds A B A B ...; return those of each side.

    Other load on the machine so affects every side.

    Args:
        count: rounds of each side.
        sides: functions for one round, by name.
        warm_up: whether each first does an uncounted round, since some work is slow only once.
    """
    for work in sides.values() if warm_up else ():
        work()
    rounds = [{name: work() for name, work in sides.items()} for _ in range(count)]
    return {name: [row[name] for row in rounds] for name in sides}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of the results.

    Attributes:
        name: of the measurement.
        unit: of ``ours`` and ``theirs``.
        ours: median of our rounds.
        theirs: median of theirs; None where there is nothing to compare with.
        ratios: of our figure to theirs, for each pair of rounds; above 1 is better.
        target: for ``figure`` to reach.
        at_most: whether ``figure`` has to stay below the target instead.
        note: for the reader.
        points: (size, cost) each, of a measurement of growth.
        details: further figures by name, such as the shares of the time.
    """

    name: str
    unit: str
    ours: float
    theirs: float | None = None
    ratios: tuple[float, ...] = ()
    target: float | None = None
    at_most: bool = False
    note: str = ""
    points: tuple[tuple[float, float], ...] = ()
    details: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def rate(
        cls,
        name: str,
        unit: str,
        ours: Sequence[Round],
        theirs: Sequence[Round],
        figure: Callable[[Round], float] = per_cpu_second,
        **more: Any,  # noqa: ANN401 - the other attributes
    ) -> Self:
        """Compare a figure of which more is better."""
        mine, others = [figure(each) for each in ours], [figure(each) for each in theirs]
        ratios = tuple(one / other for one, other in zip(mine, others, strict=True))
        return cls(name, unit, statistics.median(mine), statistics.median(others), ratios, **more)

    @classmethod
    def cost(
        cls,
        name: str,
        unit: str,
        ours: Sequence[Round],
        theirs: Sequence[Round],
        figure: Callable[[Round], float] = cpu_seconds,
        **more: Any,  # noqa: ANN401 - the other attributes
    ) -> Self:
        """Compare a figure of which less is better, such as seconds.

        An example are CPU seconds of the same work.
        """
        found = cls.rate(name, unit, ours, theirs, figure, **more)
        return replace(found, ratios=tuple(1 / ratio for ratio in found.ratios))

    @property
    def figure(self) -> float:
        """The figure compared with the target.

        It is the median ratio, or our figure where there is none.
        """
        return statistics.median(self.ratios) if self.ratios else self.ours

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without one."""
        if self.target is None:
            return None
        return self.figure <= self.target if self.at_most else self.figure >= self.target

    def to_json(self) -> dict[str, Any]:
        """Return the line, without empty fields.

        Figures and ratios stay even when they are null.
        """
        compared = bool(self.ratios)
        entry: dict[str, Any] = {
            "name": self.name,
            "ours": _rounded(self.ours),
            "theirs": None if self.theirs is None else _rounded(self.theirs),
            "unit": self.unit,
            "ratio_min": _rounded(min(self.ratios)) if compared else None,
            "ratio_median": _rounded(statistics.median(self.ratios)) if compared else None,
            "ratio_max": _rounded(max(self.ratios)) if compared else None,
        }
        if self.target is not None:
            entry |= {"target": self.target, "at_most": self.at_most, "met": self.met}
        more = {
            "note": self.note,
            "points": [[_rounded(x), _rounded(y)] for x, y in self.points],
            "details": {name: _rounded(value) for name, value in self.details.items()},
        }
        return entry | {name: value for name, value in more.items() if value}


def _rounded(value: float) -> float:
    """Round to four significant digits: more would suggest false precision."""
    return float(f"{value:.4g}")
