"""Outcome: the forecast of a night beside its actual figures."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypedDict

from pbg_tasks.config.results import EvalResult, TrainResult
from pbg_tasks.forecast.night import short_seconds, written
from pbg_tasks.forecast.usage import Usage, is_of_last_try
from pbg_tasks.forecast.work import EVAL_PART
from pbg_tasks.progress import aligned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pbg_tasks.config import Costs
    from pbg_tasks.config.results import ForecastDocument, TaskResult

_WORTH_WARNING = 1.0  # least seconds beyond the interval of a task for a warning


class Pair(TypedDict):
    """Figure that was forecast, and the actual one; ``ratio``: actual to forecast."""

    forecast: float
    actual: float | None
    ratio: float | None


class Cost(Pair):
    """Forecast and actual price."""

    currency: str


class Outcome(TypedDict):
    """Forecast beside the actual figures of the finished tasks.

    Attributes:
        tasks: by task and field of ``Usage``.
        total_seconds: over the finished tasks.
        total_cpu_seconds: same.
        cost: same; None without prices.
        calibrated_on: earlier runs that corrected the forecast.
        warnings: sentences on tasks that took longer than nine nights of ten should; one on all of them for a
            forecast that no earlier night corrected, because its rates are those of another machine.
        last_try: tasks whose figures, and so the totals, count only their last attempt.
    """

    tasks: dict[str, dict[str, Pair]]
    total_seconds: Pair
    total_cpu_seconds: Pair
    cost: Cost | None
    calibrated_on: list[str]
    warnings: list[str]
    last_try: list[str]


def compare(forecast: ForecastDocument, results: Mapping[str, TaskResult]) -> Outcome:
    """Compare a forecast with the figures of a run's finished tasks."""
    finished = {task: usage for task, usage in _measured(results) if task in forecast.tasks}
    planned = {task: Usage(**forecast.tasks[task].model_dump()) for task in finished}
    # Where `pbg run` evaluates a night that was planned in parts, the forecast of eval is that of their merge alone.
    is_merge = EVAL_PART in forecast.tasks and EVAL_PART not in finished
    timely = {task: usage for task, usage in finished.items() if not (is_merge and task == EvalResult.TASK)}
    found: Outcome = {
        "tasks": {task: _pairs(planned[task], usage) for task, usage in finished.items()},
        "total_seconds": _total("seconds", planned, finished),
        "total_cpu_seconds": _total("cpu_seconds", planned, finished),
        "cost": None,
        "calibrated_on": forecast.calibrated_on,
        "warnings": list(_warnings(forecast, timely)),
        "last_try": [task for task in finished if task in results and is_of_last_try(results[task])],
    }
    if (costs := forecast.prices) is not None:
        expected, actual = _other_parts(planned, finished, results)
        trained = results.get(TrainResult.TASK)
        alone = isinstance(trained, TrainResult) and trained.ranks == 1  # `pbg run` ignores the launch
        machines = 1 if alone else forecast.machines
        pair = _pair(_price(costs, planned, forecast.machines, expected), _price(costs, finished, machines, actual))
        found["cost"] = {**pair, "currency": costs.currency}
    return found


def _measured(results: Mapping[str, TaskResult]) -> Iterator[tuple[str, Usage]]:
    """Yield each task's usage, of parts before their merge."""
    for task, result in results.items():
        if isinstance(result, EvalResult) and (parts := result.parts) is not None:
            taken = {field: getattr(parts.usage, field) for field in Usage._fields[1:]}
            yield EVAL_PART, Usage(parts.seconds, **taken)
        if (usage := Usage.of_result(result)) is not None:
            yield task, usage


def _other_parts(
    planned: Mapping[str, Usage], finished: Mapping[str, Usage], results: Mapping[str, TaskResult]
) -> tuple[float, float]:
    """Return the other parts' seconds, as forecast and in fact."""
    evaluated = results.get(EvalResult.TASK)
    parts = evaluated.parts if isinstance(evaluated, EvalResult) else None
    if parts is None or EVAL_PART not in finished:
        return 0.0, 0.0
    return (parts.count - 1) * planned[EVAL_PART].seconds, parts.all_seconds - parts.seconds


def outcome_table(found: Outcome) -> list[str]:
    """Return the result of ``compare`` as a small table, for people.

    A cell is ``forecast -> actual (ratio)``. Empty where no task has finished.
    """
    if not found["tasks"]:
        return []
    rows: list[tuple[str, ...]] = [("task", "time", "CPU", "memory", "read", "written")]
    for task, fields in found["tasks"].items():
        rows.append((task, *(_beside(fields[field], partial(written, field)) for field in Usage._fields)))
    totals = (found["total_seconds"], found["total_cpu_seconds"])
    rows.append(("all", *(_beside(total, short_seconds) for total in totals), "", "", ""))
    lines = aligned(rows)
    if found["cost"] is not None:
        lines.append(f"cost, {found['cost']['currency']}: {_beside(found['cost'], '{:.4g}'.format)}")
    resumed = "figures of its last try only; it went on where an earlier one ended"
    lines += [f"{task}: {resumed}" for task in found["last_try"]]
    return [*lines, *(f"warning: {sentence}" for sentence in found["warnings"])]


def _beside(pair: Pair, write: Callable[[float], str]) -> str:
    forecast, actual = pair["forecast"], pair["actual"]
    ratio = pair["ratio"]
    share = "" if ratio is None else f" ({ratio:.2f})"
    return f"{write(forecast or 0)} -> {write(actual or 0)}{share}"


def _warnings(forecast: ForecastDocument, finished: Mapping[str, Usage]) -> Iterator[str]:
    seconds = {task: usage.seconds for task, usage in finished.items()}
    intervals = {task: forecast.intervals.seconds[task] for task in finished}
    note = ""
    if not forecast.calibrated_on:
        low = sum(low for low, _ in intervals.values())
        high = sum(high for _, high in intervals.values())
        seconds, intervals = {"the night": sum(seconds.values())}, {"the night": (low, high)}
        note = " with the times of another machine; it corrects those of the nights that follow"
    for task, taken in seconds.items():
        low, high = intervals[task]
        if taken > high + _WORTH_WARNING:
            expected = f"{short_seconds(low)} to {short_seconds(high)}"
            yield f"{task} took {short_seconds(taken)}, longer than the {expected} that were forecast{note}"


def _pairs(planned: Usage, actual: Usage) -> dict[str, Pair]:
    return dict(zip(Usage._fields, map(_pair, planned, actual), strict=True))


def _pair(forecast: float, actual: float) -> Pair:
    ratio = round(actual / forecast, 3) if forecast else None
    return {"forecast": round(forecast, 6), "actual": round(actual, 6), "ratio": ratio}


def _total(field: str, planned: Mapping[str, Usage], finished: Mapping[str, Usage]) -> Pair:
    return _pair(_sum(planned, field), _sum(finished, field))


def _sum(usages: Mapping[str, Usage], field: str) -> float:
    return float(sum(getattr(usage, field) for usage in usages.values()))


def _price(costs: Costs, usages: Mapping[str, Usage], machines: int, other_parts: float) -> float:
    training = usages["train"].seconds if "train" in usages else 0.0
    hours = (_sum(usages, "seconds") + (machines - 1) * training + other_parts) / 3600
    return costs.of(hours, read=_sum(usages, "store_bytes_read"), written=_sum(usages, "store_bytes_written"))
