"""Training steps on FB15k and a graph of LiveJournal's kind.

Figures are edges a CPU second, and a second with two workers.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.speed.engines import available, engine_of
from benchmarks.speed.measurement import Measurement, in_turns, per_cpu_second, per_second
from benchmarks.speed.workloads import LIVEJOURNAL, RandomGraph, fb15k
from pbg_tasks.formats.edges import edge_file_name, read_edges
from pbg_tasks.formats.entities import read_entity_count, read_relation_count
from pbg_tasks.model.numerics import use_fast_float32
from pbg_tasks.training.data.tables import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.speed.harness import Tools
    from benchmarks.speed.measurement import Round
    from benchmarks.speed.worker import Worker

    Document = Mapping[str, Any]

# For each edge and side: scores, and the gradients of edges and of candidates, each of which is a product with
# 50 + 1000 candidates of 400 numbers, one multiplication and one addition each.
FB_FLOPS = 2 * 3 * 2 * 1050 * 400
_TARGETS = {
    ("FB", "native", 1): 12.0,
    ("FB", "native", 2): 10.0,
    ("FB", "native bf16", 1): 15.0,
    ("LJ", "native", 1): 7.0,
}
_ROOFLINE_TARGET = 0.75
_SIZE, _PRODUCTS = 2048, 8
_HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
_PBG, _PBG_HUGE, _PEAK = "PBG", "PBG with huge pages", "roofline"
_RATE = "edges/cpu-s"
_BY_TWO = 40_000  # edges of a round of either side: handing them to two workers costs the same


class Ours:
    """Our engines on a graph's only bucket.

    The graph has one entity type; all engines train the same table.

    Args:
        config: as PBG reads it.
        variants: names of engines.
        workers: threads of each.
    """

    def __init__(self, config: Document, variants: list[str], workers: int) -> None:
        entities = Path(config["entity_path"])
        (entity,) = config["entities"]
        relations = read_relation_count(entities) if config.get("dynamic_relations") else 1
        self._engines = {name: engine_of(name, config, relations, workers) for name in variants}
        self._edges = read_edges(Path(config["edge_paths"][0]) / edge_file_name(0, 0))
        self._generator = torch.Generator().manual_seed(0)
        count = read_entity_count(entities, entity, 0)
        self._tables = {entity: Table.random(count, config["dimension"], 1e-3, self._generator)}
        for engine in self._engines.values():
            engine.place.send(self._tables[entity])  # as a training does

    def train(self, variant: str, edges: int) -> int:
        """Train that many edges, drawn without replacement, and return their number."""
        chosen = torch.randperm(len(self._edges), generator=self._generator)[:edges].numpy()
        engine = self._engines[variant]
        stats, _ = engine.train_bucket(
            self._edges.select(np.sort(chosen)), self._tables, self._tables, generator=self._generator
        )
        return int(stats.count)

    def multiply(self) -> int:
        """Multiply large matrices by one thread; return the operations.

        It is as fast as this machine can be in float32.
        """
        torch.set_num_threads(1)
        use_fast_float32()
        factor = torch.ones(_SIZE, _SIZE)
        for _ in range(_PRODUCTS):
            torch.mm(factor, factor)
        return _PRODUCTS * 2 * _SIZE**3


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:
    """Measure both workloads with every available engine.

    ``quick``: by one worker, LiveJournal's with the best.
    """
    fb = fb15k(tools.fb15k(), tools.directory / "fb15k")
    variants = available(fb)
    race = _Race("FB", fb, variants, ours=20_000, theirs=5_000, huge_pages=not quick)
    found = _one_worker(tools, race)
    if not quick:
        found += _two_workers(tools, replace(race, ours=_BY_TWO, theirs=_BY_TWO))
    # Each round of ours ends with a look at all rows, which costs a larger share than in a real bucket when rounds are
    # short.
    lj = RandomGraph(1_000_000, 2_000_000).write(LIVEJOURNAL, tools.directory / "livejournal")
    variants = [name for name in variants if "N3" not in name]
    if quick:
        best = [name for name in variants if name.startswith("native")] or variants
        return found + _one_worker(tools, _Race("LJ", lj, best, ours=400_000, theirs=20_000))
    race = _Race("LJ", lj, variants, ours=1_000_000, theirs=40_000, huge_pages=True)
    return found + _one_worker(tools, race) + _two_workers(tools, race)


@dataclass(frozen=True, slots=True)
class _Race:
    """A workload, its participants, and the edges of a round."""

    workload: str
    config: Document
    variants: list[str]
    ours: int
    theirs: int
    huge_pages: bool = False

    def our_worker(self, tools: Tools, workers: int) -> Worker:
        return tools.ours(f"{__name__}:Ours", config=self.config, variants=self.variants, workers=workers)

    def our_sides(self, worker: Worker) -> dict[str, Callable[[], Round]]:
        return {name: partial(worker, "train", variant=name, edges=self.ours) for name in self.variants}


def _one_worker(tools: Tools, race: _Race) -> list[Measurement]:
    with ExitStack() as stack:
        mine = stack.enter_context(race.our_worker(tools, 1))
        sides = race.our_sides(mine) | {_PEAK: partial(mine, "multiply")}
        for name, environment in {_PBG: {}, _PBG_HUGE: _HUGE_PAGES}.items():
            if environment and not race.huge_pages:
                continue
            pbg = tools.theirs("Training", environment=environment, config=race.config, workers=1)
            sides[name] = partial(stack.enter_context(pbg), "train", edges=race.theirs)
        rounds = in_turns(tools.pairs, sides)
    found = []
    for name in race.variants:
        title = f"{race.workload} step, {name}"
        target = _TARGETS.get((race.workload, name, 1))
        note = "PBG 1.0.0 has no regularizer, so it does less" if "N3" in name else ""
        found.append(Measurement.rate(title, _RATE, rounds[name], rounds[_PBG], target=target, note=note))
        if race.huge_pages:
            more = Measurement.rate(f"{title}, against PBG with huge pages", _RATE, rounds[name], rounds[_PBG_HUGE])
            found.append(replace(more, note="THP_MEM_ALLOC_ENABLE=1, a variable of torch that PBG's users can set"))
        if race.workload == "FB" and "bf16" not in name:
            found.append(_roofline(title, rounds[name], rounds[_PEAK], name))
    return found


def _roofline(title: str, rounds: Sequence[Round], peaks: Sequence[Round], variant: str) -> Measurement:
    """Compare the rate of FB with one large matrix product.

    Both run by one thread.
    """
    shares = [FB_FLOPS * per_cpu_second(ours) / per_cpu_second(peak) for ours, peak in zip(rounds, peaks, strict=True)]
    gflops = statistics.median(map(per_cpu_second, peaks)) / 1e9
    return Measurement(
        f"{title}, share of the float32 roofline",
        "share",
        statistics.median(shares),
        target=_ROOFLINE_TARGET if variant == "native" else None,
        note=f"{FB_FLOPS / 1e6:.2f} MFLOP an edge; the roofline is a {_SIZE} x {_SIZE} product by torch",
        details={"GFLOP/s of the roofline": gflops},
    )


def _two_workers(tools: Tools, race: _Race) -> list[Measurement]:
    with (
        race.our_worker(tools, 2) as mine,
        tools.theirs("Training", config=race.config, workers=2) as pbg,
    ):
        rounds = in_turns(tools.pairs, race.our_sides(mine) | {_PBG: partial(pbg, "train", edges=race.theirs)})
    return [
        Measurement.rate(
            f"{race.workload} step, {name}, 2 workers",
            "edges/s",
            rounds[name],
            rounds[_PBG],
            per_second,
            target=_TARGETS.get((race.workload, name, 2)),
            note="wall time",
            details={"edges/cpu-s": statistics.median(map(per_cpu_second, rounds[name]))},
        )
        for name in race.variants
    ]
