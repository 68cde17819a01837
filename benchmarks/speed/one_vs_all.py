"""Training steps on FB15k that compare each edge with all entities.

Figures are edges a CPU second and the share of a matrix product's rate.
"""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.speed.engines import available
from benchmarks.speed.measurement import Measurement, in_turns, per_cpu_second
from benchmarks.speed.workloads import fb15k
from pbg_tasks.formats.entities import read_entity_count

if TYPE_CHECKING:
    from benchmarks.speed.harness import Tools

_OURS, _THEIRS = 3_000, 1_000
_PBG, _PEAK = "PBG", "product"


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:
    """Measure batches compared with all 14,951 entities, by one worker.

    ``quick``: once.
    """
    config = fb15k(tools.fb15k(), tools.directory / "fb15k")
    config |= {"relations": [config["relations"][0] | {"all_negs": True}], "num_uniform_negs": 0, "num_batch_negs": 0}
    entities = read_entity_count(Path(config["entity_path"]), "all", 0)
    # For each edge and side: scores and two gradients, each a product with all entities.
    flops = 2 * 3 * 2 * entities * config["dimension"]
    variants = [name for name in available(config) if "N3" not in name]
    with (
        tools.ours("benchmarks.speed.steps:Ours", config=config, variants=variants, workers=1) as mine,
        tools.theirs("Training", config=config, workers=1) as pbg,
    ):
        sides = {name: partial(mine, "train", variant=name, edges=_OURS) for name in variants}
        sides |= {_PEAK: partial(mine, "multiply"), _PBG: partial(pbg, "train", edges=_THEIRS)}
        rounds = in_turns(1 if quick else tools.pairs, sides)
    peak = statistics.median(map(per_cpu_second, rounds[_PEAK]))
    found = []
    for name in variants:
        rate = flops * statistics.median(map(per_cpu_second, rounds[name]))
        found.append(
            Measurement.rate(
                f"1-vs-all step, {name}",
                "edges/cpu-s",
                rounds[name],
                rounds[_PBG],
                note=f"{flops / 1e6:.1f} MFLOP an edge",
                details={"GFLOP/s": rate / 1e9, "GFLOP/s of a large product": peak / 1e9, "share": rate / peak},
            )
        )
    return found
