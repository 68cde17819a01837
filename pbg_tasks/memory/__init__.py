"""Forecasts of a task's memory, and the memory of this machine.

A forecast is made term by term, and without torch, so that a plan can make one.
"""

from __future__ import annotations

from pbg_tasks.memory.forecast import Forecast
from pbg_tasks.memory.gang import GangPart
from pbg_tasks.memory.machine import (
    check_fits,
    forget_peak,
    peak_bytes,
    resident_bytes,
    usable_bytes,
    usable_cpus,
)
from pbg_tasks.memory.tasks import evaluation_forecast, indexing_peak, preparation_forecast, preparation_peaks
from pbg_tasks.memory.training import TrainingSize, serving_forecast, training_forecast

__all__ = [
    "Forecast",
    "GangPart",
    "TrainingSize",
    "check_fits",
    "evaluation_forecast",
    "forget_peak",
    "indexing_peak",
    "peak_bytes",
    "preparation_forecast",
    "preparation_peaks",
    "resident_bytes",
    "serving_forecast",
    "training_forecast",
    "usable_bytes",
    "usable_cpus",
]
