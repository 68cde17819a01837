"""Running of benchmarks one after the other.

A failing one is reported, and the others go on.
"""

from __future__ import annotations

import shutil
import traceback
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from benchmarks.speed.environment import environment, revision
from benchmarks.speed.harness import PBG_EPOCHS, RACERS, Tools
from benchmarks.speed.worker import ROOT
from pbg_tasks.progress import say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.speed.catalogue import Benchmark
    from benchmarks.speed.results import Results


_QUICK_PAIRS = 3
"""Rounds of each side, so that slow hosts keep the ten minutes, too."""


@dataclass(slots=True)
class Runner:
    """Measures and keeps.

    Attributes:
        results: taken over and added to.
        keep: called after every addition to the results.
        cache: directory of the benchmarks' files.
        data: folder with data sets.
        quick: whether the benchmarks are to be short.
        race_epochs: that PBG trains in the race.
        racers: the sides of the race that are run now.
        edges: of the graph whose nights are measured; None: as many as the benchmark has.
        failures: errors by benchmark.
    """

    results: Results
    keep: Callable[[Results], None]
    cache: Path
    data: Path
    quick: bool = False
    race_epochs: int = PBG_EPOCHS
    racers: tuple[str, ...] = RACERS
    edges: int | None = None
    failures: dict[str, str] = field(default_factory=dict)

    def run(self, benchmarks: Sequence[Benchmark], *, again: bool) -> None:
        """Run benchmarks.

        Unless ``again``, those that were run on this very code here are left unchanged.
        """
        for benchmark in benchmarks:
            code = revision(ROOT)
            if not again and self.results.has(benchmark.name, code, environment()):
                say(f"{benchmark.name}: measured on {code} and such a machine already")
                continue
            say(f"{benchmark.name}: measuring")
            try:
                self._measure(benchmark, code)
            except Exception as error:  # noqa: BLE001 - the others are still to be measured
                traceback.print_exc()
                self.failures[benchmark.name] = f"{type(error).__name__}: {error}"

    def _measure(self, benchmark: Benchmark, code: str | None) -> None:
        circumstances = environment()
        directory = self.cache / "runs" / benchmark.name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        tools = Tools(
            directory, self.cache, self.data, race_epochs=self.race_epochs, racers=self.racers, edges=self.edges
        )
        if self.quick:
            tools = replace(tools, pairs=_QUICK_PAIRS)
        found = benchmark.measure(tools, quick=self.quick)
        common = {"rerun": benchmark.rerun(quick=self.quick), "revision": code, "environment": circumstances}
        if found:
            self.results.replace(benchmark.name, found, **common)
            self.keep(self.results)
        elif self.results.of(benchmark.name):
            say(f"{benchmark.name}: its earlier figures stay")
        shutil.rmtree(directory)
