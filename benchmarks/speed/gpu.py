"""Training steps on a GPU beside those of the CPU.

They are measured where there is a GPU; the CPU uses its fastest engine.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from benchmarks.speed.engines import GPU, available
from benchmarks.speed.measurement import Measurement, in_turns, per_second
from benchmarks.speed.steps import FB_FLOPS
from benchmarks.speed.workloads import LIVEJOURNAL, RandomGraph, fb15k
from pbg_tasks.memory.machine import usable_cpus
from pbg_tasks.progress import say

if TYPE_CHECKING:
    from benchmarks.speed.harness import Tools

_EDGES = 400_000  # edges of a round on the GPU: well beyond the batches after which steps are recorded
_CPU_EDGES = 40_000


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:
    """Compare both workloads by wall time.

    Nothing is measured, and the reason is reported, where torch finds no GPU.
    """
    if not torch.cuda.is_available():
        say("gpu: not measured, torch finds no GPU here")
        return []
    fb = fb15k(tools.fb15k(), tools.directory / "fb15k")
    lj = RandomGraph(1_000_000, 2_000_000).write(LIVEJOURNAL, tools.directory / "livejournal")
    edges = _EDGES // (4 if quick else 1)
    return [
        found for workload, config in (("FB", fb), ("LJ", lj)) for found in _compared(tools, workload, config, edges)
    ]


def _compared(tools: Tools, workload: str, config: dict[str, object], edges: int) -> list[Measurement]:
    native = [name for name in available(config) if name == "native"]
    cpu, workers = (native or ["torch"])[0], usable_cpus()
    place = "benchmarks.speed.steps:Ours"
    with (
        tools.ours(place, config=config, variants=list(GPU), workers=1) as gpu,
        tools.ours(place, config=config, variants=[cpu], workers=workers) as host,
    ):
        sides = {name: partial(gpu, "train", variant=name, edges=edges) for name in GPU}
        rounds = in_turns(tools.pairs, sides | {cpu: partial(host, "train", variant=cpu, edges=_CPU_EDGES)})
    note = f"wall time; {torch.cuda.get_device_name()}; the bucket's way to the GPU and back counts"
    found = []
    for variant in GPU:
        title = f"{workload} step, {variant}, against {cpu}, {workers} workers"
        each = Measurement.rate(title, "edges/s", rounds[variant], rounds[cpu], per_second, note=note)
        flops = {"TFLOP/s": FB_FLOPS * each.ours / 1e12} if workload == "FB" else {}
        found.append(replace(each, details=flops))
    return found
