"""Settings of independent nights, tried on valid edges."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.nights.graph import merged
from benchmarks.nights.night import DATA_GATE, RELEASED, run_nights
from benchmarks.nights.settings import INDEPENDENT, ON_VALID, best_of
from benchmarks.nights.walk import remove
from pbg_tasks.errors import PbgError
from pbg_tasks.progress import say

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.nights.graph import Graph
    from benchmarks.nights.night import Night
    from benchmarks.nights.settings import Setting


class TuningError(PbgError):
    """A night of a tried setting ended in another way than expected."""

    kind = "tuning"
    exit_code = 1


@dataclass(frozen=True, slots=True)
class _Tried:
    name: str
    spec: Path
    store: str


def tune(graph: Graph, *, at_once: int) -> dict[str, Any]:
    """Choose the setting of independent nights.

    It is tried on the first, the middle and the last of the days that the data gate lets pass.

    Args:
        graph: its days.
        at_once: number of settings that are tried at the same time.

    Returns:
        ``days``; ``rows``: of each setting ``name``, mean MRR on ``valid`` edges, ``overlap`` None, and means of
        ``train_cpu_seconds`` and ``edges_trained``; and the name that is ``chosen``.

    Raises:
        TuningError: a night failed, or no day is good.
    """
    good = _good_days(graph)
    days = [good[0], good[len(good) // 2], good[-1]]
    with ThreadPoolExecutor(at_once) as beside:  # they share no store
        rows = list(beside.map(lambda tried: _try(tried, days), _specs(graph, INDEPENDENT)))
    return {"days": days, "rows": rows, "chosen": best_of(rows)}


def _good_days(graph: Graph) -> list[str]:
    """Return the days that the data gate lets pass.

    Nights of one short epoch find them.
    """
    (tried,) = _specs(graph, {"days": {"model": {"num_epochs": 1, "num_uniform_negs": 10}}})
    days: list[str] = []
    for day in graph.days:
        (night,) = run_nights(tried.spec, [day])
        if _released(tried.name, night):
            days.append(day)
    if not days:
        raise TuningError("no day passes the data gate")
    remove(tried.store)
    return days


def _specs(graph: Graph, settings: dict[str, Setting]) -> list[_Tried]:
    found = []
    for number, (name, setting) in enumerate(settings.items()):
        store = f"{graph.place}/tuning-{number}"
        spec = graph.spec("independent", **merged(setting, ON_VALID), store=store)
        found.append(_Tried(name, spec.rename(spec.with_name(f"tuning-{number}.yaml")), store))
    return found


def _try(tried: _Tried, days: Sequence[str]) -> dict[str, Any]:
    nights = [night.figures for night in run_nights(tried.spec, days) if _released(tried.name, night)]
    remove(tried.store)
    row = {
        "name": tried.name,
        "valid": round(fmean(each["mrr"] for each in nights), 4),
        "overlap": None,
        "train_cpu_seconds": round(fmean(each["train_cpu_seconds"] for each in nights), 2),
        "edges_trained": round(fmean(each["edges_trained"] for each in nights)),
    }
    say(f"tried: {row}")
    return row


def _released(name: str, night: Night) -> bool:
    if night.outcome not in {RELEASED, DATA_GATE}:
        raise TuningError(f"{name}, {night.day}: {night.outcome}: {night.said}")
    return night.outcome == RELEASED
