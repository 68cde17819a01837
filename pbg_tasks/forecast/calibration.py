"""By what factor this graph's nights differ from what is worked out for them, as earlier nights show."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from pbg_tasks.forecast.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.config.results import ForecastDocument, TaskResult

RATES = 2
"""Number of the rates in ``work``; nights that were worked out with others do not compare."""
_UNKNOWN = math.log(3)  # how far off the rates may be where nobody has measured: a factor
_LEAST = math.log(1.15)  # by which a night on a machine with neighbours differs from the one before anyway
_NINETY = 1.645  # standard deviations that nine of ten nights keep within
_FLOOR = {"seconds": 0.02, "cpu_seconds": 0.02, "store_bytes_read": 1e4, "store_bytes_written": 1e4}
"""Less than that of a figure tells nothing."""


class Figure(NamedTuple):
    """One that is forecast: nine of ten nights lie between ``low`` and ``high``."""

    low: float
    likely: float
    high: float


@dataclass(frozen=True, slots=True)
class MeasuredNight:
    """A night that was forecast, and what it took.

    Attributes:
        run: its id.
        engine: that trained it.
        modelled: what was worked out for each task.
        measured: what each took.
    """

    run: str
    engine: str
    modelled: Mapping[str, Usage]
    measured: Mapping[str, Usage]

    @classmethod
    def of_results(
        cls, run: str, forecast: ForecastDocument | None, results: Mapping[str, TaskResult]
    ) -> MeasuredNight | None:
        """Return what a run's results tell; None where they tell nothing that compares.

        Args:
            run: its id.
            forecast: of the plan's result; None where it has none.
            results: of its other tasks, by name.
        """
        if forecast is None or forecast.rates != RATES:
            return None
        measured = {task: usage for task, result in results.items() if (usage := Usage.of_result(result)) is not None}
        planned = {task: Usage(*figures) for task, figures in forecast.modelled.items()}
        return cls(run, forecast.engine, planned, measured) if measured else None


def calibrated(task: str, field: str, value: float, nights: Sequence[MeasuredNight]) -> Figure:
    """Correct a figure by the factors that earlier nights show: by their median, and by how much they differ.

    Memory is corrected by a difference: of what a process holds, the part that does not follow from sizes is constant.

    Args:
        task: whose figure it is.
        field: of ``Usage``.
        value: worked out.
        nights: earlier ones.
    """
    pairs = [
        (getattr(night.measured[task], field), getattr(night.modelled[task], field))
        for night in nights
        if task in night.measured and task in night.modelled
    ]
    if field == "memory_bytes":
        more = median(measured - planned for measured, planned in pairs) if pairs else 0
        return Figure(*[max(value + more, 0)] * 3)
    floor = _FLOOR[field]
    # Nor does a night with none of it to do, such as a first one, tell anything of a night that has.
    comparable = [(measured, planned) for measured, planned in pairs if planned >= floor or value < floor]
    off = [math.log(max(measured, floor) / max(planned, floor)) for measured, planned in comparable]
    if not off:
        return Figure(value * math.exp(-_UNKNOWN), value, value * math.exp(_UNKNOWN))
    middle = median(off)
    # Of few nights the deviation is not known: what is usual counts as much as one of them.
    squares = sum((each - middle) ** 2 for each in off)
    width = _NINETY * math.sqrt((squares + _LEAST**2) / len(off) + _LEAST**2 / len(off))
    return Figure(*(value * math.exp(middle + way * max(width, _LEAST)) for way in (-1, 0, 1)))
