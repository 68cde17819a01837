"""Forecast of a night: each task's figures with intervals, and totals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from pbg_tasks.forecast.calibration import RATES, Figure, calibrated, of_kind
from pbg_tasks.forecast.usage import Usage
from pbg_tasks.forecast.work import EVAL_PART
from pbg_tasks.progress import aligned, counted, human_count, human_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.config import Costs
    from pbg_tasks.forecast.calibration import MeasuredNight

_HOUR = 3600


class Price(TypedDict):
    """Amount of money."""

    amount: float
    currency: str


class ForecastEnds(TypedDict):
    """Both ends of the intervals of nine nights of ten."""

    seconds: dict[str, list[float]]
    total_seconds: list[float]
    cost: list[float] | None


class NightForecastDocument(TypedDict):
    """A forecast as stored; ``tasks``, ``modelled`` by task and field."""

    memory_bytes: int
    store_bytes_read: int
    store_bytes_written: int
    seconds: dict[str, float]
    total_seconds: float
    cost: Price | None
    calibrated_on: list[str]
    tasks: dict[str, dict[str, float]]
    intervals: ForecastEnds
    machines: int
    prices: dict[str, object] | None
    engine: str
    kind: str
    rates: int
    modelled: dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class NightForecast:
    """Forecast of a night.

    Attributes:
        engine: that trains it.
        modelled: figures computed for each task, by name.
        tasks: the same after calibration by earlier nights: by task, by field of ``Usage``.
        nights: ids of those runs.
        machines: number of machines that train together.
        costs: prices, if they are known.
        kind: of its work.
        parts: number of parts of the evaluation, which run at once.
    """

    engine: str
    modelled: Mapping[str, Usage]
    tasks: Mapping[str, Mapping[str, Figure]]
    nights: tuple[str, ...]
    machines: int = 1
    costs: Costs | None = None
    kind: str = ""
    parts: int = 1

    @property
    def seconds(self) -> Figure:
        """Duration of all tasks, one after the other.

        Parts of a task run at once.
        """
        return self._total("seconds")

    @property
    def cost(self) -> Figure | None:
        """Cost of all tasks; None where prices are unknown."""
        if self.costs is None:
            return None
        read, written = self._total("store_bytes_read"), self._total("store_bytes_written")
        hours = self._machine_hours
        return Figure(*(self.costs.of(h, read=r, written=w) for h, r, w in zip(hours, read, written, strict=True)))

    @property
    def _machine_hours(self) -> Figure:
        figures = [self.seconds, *[self.tasks["train"]["seconds"]] * (self.machines - 1)]
        if EVAL_PART in self.tasks:
            figures += [self.tasks[EVAL_PART]["seconds"]] * (self.parts - 1)
        return Figure(*(sum(hours) / _HOUR for hours in zip(*figures, strict=True)))

    def _total(self, field: str) -> Figure:
        # A cause that makes one task slow (the machine, its other users) mostly makes all of them slow, so deviations
        # are added up.
        figures = [each[field] for each in self.tasks.values()]
        return Figure(*map(sum, zip(*figures, strict=True)))

    def to_json(self) -> NightForecastDocument:
        """Return plain JSON values.

        They are the likely figures, and beside them the ``intervals`` of nine nights of ten.
        """
        cost, total = self.cost, self.seconds
        seconds = {task: each["seconds"] for task, each in self.tasks.items()}
        return {
            "memory_bytes": round(max(each["memory_bytes"].likely for each in self.tasks.values())),
            "store_bytes_read": round(self._total("store_bytes_read").likely),
            "store_bytes_written": round(self._total("store_bytes_written").likely),
            "seconds": _likely(seconds),
            "total_seconds": round(total.likely, 3),
            "cost": None
            if cost is None or self.costs is None
            else {"amount": round(cost.likely, 6), "currency": self.costs.currency},
            "calibrated_on": list(self.nights),
            "tasks": {task: _likely(each) for task, each in self.tasks.items()},
            "intervals": {
                "seconds": {task: _ends(figure, 3) for task, figure in seconds.items()},
                "total_seconds": _ends(total, 3),
                "cost": None if cost is None else _ends(cost, 6),
            },
            "machines": self.machines,
            "prices": None if self.costs is None else self.costs.model_dump(mode="json"),
            "engine": self.engine,
            "kind": self.kind,
            "rates": RATES,
            "modelled": {task: list(usage) for task, usage in self.modelled.items()},
        }

    def table(self, *, itemised: bool = True) -> list[str]:
        """Return the forecast as the lines of a small table, for people.

        Args:
            itemised: with a line for each task.
        """
        rows: list[tuple[str, ...]] = [("task", "time", "between", "CPU", "memory", "read", "written")]
        rows += [(task, *_cells(each)) for task, each in self.tasks.items() if itemised]
        total = {field: self._total(field) for field in Usage._fields}
        total["memory_bytes"] = max(each["memory_bytes"] for each in self.tasks.values())
        rows.append(("the night", *_cells(total)))
        lines = aligned(rows)
        if (cost := self.cost) is not None and self.costs is not None:
            ends = f"{cost.low:.4g} to {cost.high:.4g}"
            lines.append(f"cost of the night: {cost.likely:.4g} {self.costs.currency} ({ends})")
        return [*lines, self.basis]

    @property
    def basis(self) -> str:
        """Basis of the forecast, in a sentence."""
        if not self.nights:
            return (
                "no released night of this graph is measured: times are those of another machine, and may be off by a "
                "factor of 10; the start of each task's process comes on top, some seconds"
            )
        nights = counted(len(self.nights), "released night")
        return f"calibrated on {nights} of this graph, also the memory: likely, as their processes held it"


def forecast_night(
    modelled: Mapping[str, Usage],
    nights: Sequence[MeasuredNight],
    *,
    engine: str,
    machines: int = 1,
    ranks: int = 1,
    costs: Costs | None = None,
    kind: str = "",
    parts: int = 1,
) -> NightForecast:
    """Forecast a night.

    Args:
        modelled: figures computed for each of its tasks, by name.
        nights: earlier ones of the same graph.
        engine: that trains it; a training with another engine is not comparable.
        machines: number of machines that train together.
        ranks: number of those that share the training's time.
        costs: prices.
        kind: of its work; nights of the same kind calibrate it, where there are any.
        parts: number of parts of the evaluation.
    """
    tasks: dict[str, dict[str, Figure]] = {}
    for task, usage in modelled.items():
        there = [night for night in nights if task in night.measured and (task != "train" or night.engine == engine)]
        if task == "eval":  # a merge of parts takes a part of the time of a whole evaluation
            there = [night for night in there if (EVAL_PART in night.modelled) == (EVAL_PART in modelled)]
        if task == "train" and "delta" not in kind:  # a delta night trains a part of the edges, in a part of the time
            there = [night for night in there if "delta" not in night.kind]
        comparable = of_kind(there, kind)
        tasks[task] = {
            field: calibrated(task, field, value, comparable) for field, value in zip(usage._fields, usage, strict=True)
        }
    if ranks > 1:
        tasks["train"]["seconds"] = Figure(*(seconds / ranks for seconds in tasks["train"]["seconds"]))
    runs = tuple(night.run for night in of_kind(nights, kind))
    return NightForecast(engine, modelled, tasks, runs, machines, costs, kind, parts)


def _likely(figures: Mapping[str, Figure]) -> dict[str, float]:
    return {name: round(figure.likely, 3) for name, figure in figures.items()}


def _ends(figure: Figure, digits: int) -> list[float]:
    return [round(figure.low, digits), round(figure.high, digits)]


def _cells(figures: Mapping[str, Figure]) -> tuple[str, ...]:
    seconds = figures["seconds"]
    between = f"{short_seconds(seconds.low)} to {short_seconds(seconds.high)}"
    others = (written(field, figures[field].likely) for field in Usage._fields[1:])
    return short_seconds(seconds.likely), between, *others


def written(field: str, value: float) -> str:
    """Return a figure of ``Usage`` as text."""
    return f"{human_count(value)}B" if "bytes" in field else short_seconds(value)


def short_seconds(seconds: float) -> str:
    """Return a duration as text, in seconds below a minute.

    Seconds have two digits.
    """
    return f"{seconds:.2g} s" if round(seconds) < 60 else human_seconds(seconds)  # noqa: PLR2004 - a minute
