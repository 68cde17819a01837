"""Forecast of a night's time, memory and traffic, task by task.

It is computed from counts, and corrected by the figures of earlier nights.
"""

from __future__ import annotations

from pbg_tasks.forecast.calibration import RATES, MeasuredNight
from pbg_tasks.forecast.night import NightForecast, forecast_night
from pbg_tasks.forecast.outcome import Cost, Outcome, Pair, compare, outcome_table
from pbg_tasks.forecast.usage import Usage, is_of_last_try
from pbg_tasks.forecast.work import Work, modelled

__all__ = [
    "RATES",
    "Cost",
    "MeasuredNight",
    "NightForecast",
    "Outcome",
    "Pair",
    "Usage",
    "Work",
    "compare",
    "forecast_night",
    "is_of_last_try",
    "modelled",
    "outcome_table",
]
