"""Calibration of a forecast by the earlier nights of the graph.

It is the factor by which measured figures differ from computed ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from pbg_tasks.config.results import EvalResult, TrainResult
from pbg_tasks.forecast.usage import Usage
from pbg_tasks.forecast.work import EVAL_PART

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.config.results import ForecastDocument, TaskResult

RATES = 5
"""Number of the rates in ``work``; nights with other rates cannot be compared."""
_UNKNOWN = math.log(10)  # logarithm of the factor by which the rates may be wrong without a measured night
_LEAST = math.log(1.15)  # usual difference between two nights on a machine that has other users
_NINETY = 1.645  # number of standard deviations within which nine of ten nights are
_FLOOR = {"seconds": 0.02, "cpu_seconds": 0.02, "store_bytes_read": 1e4, "store_bytes_written": 1e4}
"""Smallest figures that are compared: smaller ones give no usable ratio."""


class Figure(NamedTuple):
    """Figure of a forecast, with its interval.

    Nine of ten nights are between ``low`` and ``high``.
    """

    low: float
    likely: float
    high: float


@dataclass(frozen=True, slots=True)
class MeasuredNight:
    """Night that was forecast, with its measured figures.

    Attributes:
        run: its id.
        engine: that trained it.
        modelled: figures computed for each task.
        measured: figures of each task that were measured.
        kind: of its work; empty where it is unknown.
    """

    run: str
    engine: str
    modelled: Mapping[str, Usage]
    measured: Mapping[str, Usage]
    kind: str = ""

    @classmethod
    def of_results(
        cls,
        run: str,
        forecast: ForecastDocument | None,
        results: Mapping[str, TaskResult],
        parts: Sequence[TaskResult] = (),
        *,
        useful: float = math.inf,
        in_pods: bool = False,
    ) -> MeasuredNight | None:
        """Return the figures of a run; None where they cannot be compared.

        Args:
            run: its id.
            forecast: of the plan's result; None where it has none.
            results: of its other tasks, by name.
            parts: results of the parts of its evaluation.
            useful: number of ranks that can train at once.
            in_pods: whether tonight's ranks have a machine each.
        """
        if forecast is None or forecast.rates != RATES:
            return None
        measured = {task: usage for task, result in results.items() if (usage := Usage.of_result(result)) is not None}
        trained = results.get("train")
        if forecast.machines > 1 and "train" in measured and isinstance(trained, TrainResult):
            # Ranks with a machine each share the time that one would take, which is the time that is computed.
            seconds = measured["train"].seconds * min(trained.ranks, useful)
            measured["train"] = measured["train"]._replace(seconds=seconds)
        if in_pods and forecast.machines == 1 and isinstance(trained, TrainResult) and trained.ranks > 1:
            measured.pop("train", None)  # of ranks on one machine, or in pods after `pbg run` had planned it
        evaluated = results.get(EvalResult.TASK)
        whole = isinstance(evaluated, EvalResult) and evaluated.kept is not None  # then parts counted in vain, if any
        of_parts = [usage for each in parts if (usage := Usage.of_result(each)) is not None]
        if of_parts and not whole:
            measured[EVAL_PART] = Usage.at_once(of_parts)
        planned = {task: Usage(*figures) for task, figures in forecast.modelled.items()}
        if (EVAL_PART in measured) != (EVAL_PART in planned):  # it was evaluated otherwise than it was forecast
            measured = {task: usage for task, usage in measured.items() if task not in {"eval", EVAL_PART}}
        return cls(run, forecast.engine, planned, measured, forecast.kind) if measured else None


def of_kind(nights: Sequence[MeasuredNight], kind: str) -> Sequence[MeasuredNight]:
    """Return the nights of a kind, or all where there are none."""
    return [night for night in nights if night.kind == kind] or nights


def calibrated(task: str, field: str, value: float, nights: Sequence[MeasuredNight]) -> Figure:
    """Correct a figure by earlier nights' ratios of measured to computed figures.

    The middle of the interval is their median, and its width follows from their spread. Memory is corrected by a
    difference: the part of a process's memory that does not follow from sizes is constant.

    Args:
        task: of the figure.
        field: of ``Usage``.
        value: computed figure.
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
    # A night with almost none of this work, such as a first night, is not comparable either with one that has some.
    comparable = [(measured, planned) for measured, planned in pairs if planned >= floor or value < floor]
    off = [math.log(max(measured, floor) / max(planned, floor)) for measured, planned in comparable]
    if not off:
        return Figure(value * math.exp(-_UNKNOWN), value, value * math.exp(_UNKNOWN))
    middle = median(off)
    # The deviation of a few nights is uncertain, so the usual deviation counts as much as one of them.
    squares = sum((each - middle) ** 2 for each in off)
    width = _NINETY * math.sqrt((squares + _LEAST**2) / len(off) + _LEAST**2 / len(off))
    return Figure(*(value * math.exp(middle + way * max(width, _LEAST)) for way in (-1, 0, 1)))
