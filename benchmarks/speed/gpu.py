"""Training, copies and evaluation on a GPU, beside other ones.

The others are the CPU's and PBG's. They are measured where there is a GPU. All figures are of wall time. The CPU uses
its fastest engine with a worker for each core, and batches of 1,000 edges: larger ones would leave workers without any.

PBG 1.0.0, the newest that is published as a package, has no GPU trainer; its model and optimizers are moved to the GPU,
as its later trainer does. Published figures of others are printed beside what is measured.
"""

from __future__ import annotations

import shutil
import statistics
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.speed.engines import GPU, available
from benchmarks.speed.measurement import Measurement, in_turns, per_second
from benchmarks.speed.steps import FB_FLOPS
from benchmarks.speed.workloads import LIVEJOURNAL, RandomGraph, fb15k
from pbg_tasks.config import ConfigSchema
from pbg_tasks.errors import PbgError
from pbg_tasks.memory.machine import usable_cpus
from pbg_tasks.progress import say
from pbg_tasks.tasks.training.train import train_directory
from pbg_tasks.training.engine.device import Accelerator

if TYPE_CHECKING:
    from benchmarks.speed.harness import Tools
    from benchmarks.speed.workloads import Document

_LARGE_BATCH = 10_000
_ROUNDS = 3
_EPOCH = RandomGraph(1_000_000, 10_000_000, partitions=4)
_RANKED = RandomGraph(1_000_000, 20_000)
_STEPS = "benchmarks.speed.steps:Ours"
_MOST_GPUS = 4
_PUBLISHED = (
    "DGL-KE trained Freebase86m in 100 minutes on eight (Zheng et al. 2020)",
    "GE2 was 2 to 7.5 times as fast as PBG, DGL-KE and Marius on several (Zheng et al. 2024)",
)
"""Figures of others, on other GPUs."""
_COPIED = 1 << 28  # numbers


class Ours:
    """Copies to the GPU and back, and epochs.

    Epochs are with and without tables that stay on the GPU.

    Args:
        config: of the epochs.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._place = Accelerator(torch.device("cuda", torch.cuda.current_device()))
        self._host, self._locked = torch.zeros(_COPIED), torch.zeros(_COPIED, pin_memory=True)
        self._there = self._place.put(self._host)
        torch.set_num_threads(1)  # as engines do

    def peak(self, precision: str) -> int:
        """Multiply large matrices; return the operations."""
        kind = torch.bfloat16 if precision == "bf16" else torch.float32
        torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        factor, size = torch.randn(8192, 8192, device="cuda", dtype=kind), 8192
        for _ in range(20):
            factor @ factor
        torch.cuda.synchronize()
        return 20 * 2 * size**3

    def copy(self, way: str) -> int:
        """Copy 1 GiB and return the bytes.

        ``way`` is ``up``, ``down``, or ``page-locked``: up from such memory.
        """
        if way == "up":
            self._place.put(self._host)
        elif way == "down":
            self._place.fetch(self._there, self._host)
        else:
            self._there.copy_(self._locked, non_blocking=True)
        torch.cuda.synchronize()
        return self._host.nbytes

    def epoch(self, *, kept: bool = True, gpus: int = 1) -> int:
        """Train an epoch from the start; return its edges."""
        shutil.rmtree(self._config["checkpoint_path"], ignore_errors=True)
        send = Accelerator.send
        try:
            if not kept:
                Accelerator.send = lambda *_: None  # type: ignore[method-assign]
            train_directory(ConfigSchema(**self._config, num_gpus=gpus), device="cuda")
        finally:
            Accelerator.send = send  # type: ignore[method-assign]
        return _EPOCH.edges


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:
    """Compare by wall time.

    Nothing is measured, and the reason is reported, where torch finds no GPU.
    """
    del quick
    if not torch.cuda.is_available():
        say("gpu: not measured, torch finds no GPU here")
        return []
    began = time.monotonic()
    say(f"gpu: {torch.cuda.get_device_name()}, {usable_cpus()} CPU cores")
    fb = fb15k(tools.fb15k(), tools.directory / "fb15k")
    lj = RandomGraph(1_000_000, 8_000_000).write(LIVEJOURNAL, tools.directory / "livejournal")
    usual = lj | {
        "relations": [lj["relations"][0] | {"operator": "translation"}],
        "dimension": 100,
        "comparator": "dot",
        "loss_fn": "softmax",
    }
    copies, peaks = _copies(tools, usual)
    found = [
        *_against_pbg(tools, fb),
        *_against_cpu(tools, "FB", fb, list(GPU), edges=(483_000, 160_000), peaks=peaks),
        *_against_cpu(tools, "LJ", lj, ["GPU tf32"], edges=(4_000_000, 800_000)),
        *_against_cpu(tools, "d 100, translation, 50 + 50", usual, ["GPU tf32"], edges=(8_000_000, 2_000_000)),
        *copies,
        *_several(tools, usual),
        _ranked(tools, usual),
    ]
    for figure in _PUBLISHED:
        say(f"gpu: published, on other GPUs: {figure}")
    say(f"gpu: {time.monotonic() - began:.0f} s")
    return found


def _against_cpu(
    tools: Tools,
    workload: str,
    config: Document,
    variants: list[str],
    *,
    edges: tuple[int, int],
    peaks: dict[str, float] | None = None,
) -> list[Measurement]:
    """Compare steps of large batches with the CPU's."""
    native = [name for name in available(config) if name == "native"]
    cpu, workers = (native or ["torch"])[0], usable_cpus()
    ours, theirs = edges
    with (
        tools.ours(_STEPS, config=config | {"batch_size": _LARGE_BATCH}, variants=variants, workers=1) as gpu,
        tools.ours(_STEPS, config=config, variants=[cpu], workers=workers) as host,
    ):
        sides = {name: partial(gpu, "train", variant=name, edges=ours) for name in variants}
        rounds = in_turns(_ROUNDS, sides | {cpu: partial(host, "train", variant=cpu, edges=theirs)})
    found = []
    for variant in variants:
        title = f"{workload} step, {variant}, batches of 10,000, against {cpu}, {workers} workers"
        each = Measurement.rate(title, "edges/s", rounds[variant], rounds[cpu], per_second, note=_card())
        if peaks is not None:
            rate, peak = FB_FLOPS * each.ours / 1e12, peaks[variant.removeprefix("GPU ")]
            each = replace(each, details={"TFLOP/s": rate, "share of the card's largest product": rate / peak})
        found.append(each)
    return found


def _against_pbg(tools: Tools, fb: Document) -> list[Measurement]:
    """Compare float32 steps of 1,000 edges with PBG's.

    Both run on the GPU, if PBG does.
    """
    variant = "GPU f32"
    try:
        with (
            tools.ours(_STEPS, config=fb, variants=[variant], workers=1) as gpu,
            tools.theirs("Training", config=fb, workers=1, device="cuda") as pbg,
        ):
            sides = {
                "ours": partial(gpu, "train", variant=variant, edges=400_000),
                "theirs": partial(pbg, "train", edges=40_000),
            }
            rounds = in_turns(_ROUNDS, sides)
    except PbgError as error:
        say(f"gpu: PBG not measured: {error}")
        return []
    title = f"FB step, {variant}, batches of 1,000, against PBG 1.0.0 on the GPU"
    return [Measurement.rate(title, "edges/s", rounds["ours"], rounds["theirs"], per_second, note=_card())]


def _copies(tools: Tools, usual: Document) -> tuple[list[Measurement], dict[str, float]]:
    """Measure copies, epochs, and the card's largest product."""
    large = {**usual, "dimension": 400, "batch_size": _LARGE_BATCH, "num_epochs": 1}
    config = _EPOCH.write(large, tools.directory / "epoch")
    with tools.ours(f"{__name__}:Ours", config=config) as worker:
        ways = {way: partial(worker, "copy", way=way) for way in ("up", "down", "page-locked")}
        rounds = in_turns(_ROUNDS, ways)
        both = {str(kept): partial(worker, "epoch", kept=kept) for kept in (True, False)}
        epochs = in_turns(2, both, warm_up=False)
        peaks = {}
        for precision in ("f32", "tf32", "bf16"):
            products = in_turns(3, {"": partial(worker, "peak", precision=precision)})[""]
            peaks[precision] = statistics.median(map(per_second, products)) / 1e12
    found = [
        Measurement.rate(
            f"copy of 1 GiB {way}, against page-locked memory",
            "B/s",
            rounds[way],
            rounds["page-locked"],
            per_second,
            note=_card(),
        )
        for way in ("up", "down")
    ]
    title = "an epoch of 10 M edges, d 400, 4 partitions: tables that stay, against copies of each bucket"
    found.append(
        Measurement.rate(
            title,
            "edges/s",
            epochs["True"],
            epochs["False"],
            per_second,
            note=f"two rounds; {_card()}",
            details={f"TFLOP/s of the largest {precision} product": peak for precision, peak in peaks.items()},
        )
    )
    return found, peaks


def _several(tools: Tools, usual: Document) -> list[Measurement]:
    """Compare up to four GPUs of this machine with one."""
    gpus = min(torch.cuda.device_count(), _MOST_GPUS)
    if gpus == 1:
        say("gpu: several GPUs not measured, torch finds one here")
        return []
    large = {**usual, "dimension": 400, "batch_size": _LARGE_BATCH, "num_epochs": 1}
    config = replace(_EPOCH, partitions=2 * gpus).write(large, tools.directory / "several")
    with tools.ours(f"{__name__}:Ours", config=config) as worker:
        rounds = in_turns(2, {str(count): partial(worker, "epoch", gpus=count) for count in (gpus, 1)}, warm_up=False)
    title = f"an epoch of 10 M edges, d 400, {2 * gpus} partitions: {gpus} GPUs in one process, against one"
    note = f"two rounds; {_card()}"
    return [Measurement.rate(title, "edges/s", rounds[str(gpus)], rounds["1"], per_second, note=note)]


def _ranked(tools: Tools, usual: Document) -> Measurement:
    """Rank edges among a million entities."""
    config = _RANKED.write(usual, tools.directory / "ranked")
    train_directory(ConfigSchema(**config))
    place = "benchmarks.speed.evaluating:Ours"
    with tools.ours(place, config=config) as gpu, tools.ours(place, config=config) as host:
        sides = {device: partial(each, "rank_on", device=device) for device, each in (("cuda", gpu), ("cpu", host))}
        rounds = in_turns(2, sides)
    values = {done.value for column in rounds.values() for done in column}
    if len(values) > 1:
        raise PbgError(f"the MRR of one checkpoint is {sorted(values)}")
    title = f"evaluation of 20 k edges among 1 M entities, GPU, against the CPU, {usable_cpus()} threads"
    return Measurement.cost(
        title, "s", rounds["cuda"], rounds["cpu"], lambda done: done.wall, note=f"the same MRR; {_card()}"
    )


def _card() -> str:
    return torch.cuda.get_device_name()
