"""Training steps of this version, an older one and PBG.

python -m benchmarks.speed.versions CHECKOUT

The checkout has its native library built (`python setup.py -q build_ext --inplace` there) and runs in this environment.
All train the same graphs by one thread, in turns. Before FB15k is timed, each side of ours trains it for some epochs:
most negatives have next to no weight then, which is what sampled gradients save. PBG's steps cost the same in all.
With ``--other`` it is nights of other sizes, and FB15k by the logistic loss.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from benchmarks.quality.data import cache_directory
from benchmarks.speed.environment import environment
from benchmarks.speed.harness import Tools
from benchmarks.speed.measurement import in_turns, per_cpu_second
from benchmarks.speed.steps import FB_FLOPS
from benchmarks.speed.table import number
from benchmarks.speed.worker import ROOT, Worker
from benchmarks.speed.workloads import LIVEJOURNAL, RandomGraph, fb15k
from pbg_tasks.native.coverage import BFLOAT16
from pbg_tasks.progress import aligned, human_count, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.speed.workloads import Document

USUAL = LIVEJOURNAL | {
    "relations": [{"name": "follow", "lhs": "user_id", "rhs": "user_id", "operator": "translation"}],
    "dimension": 100,
    "comparator": "dot",
    "loss_fn": "softmax",
    "lr": 0.1,
}
"""Config of a usual night."""
_FB_EDGES = 483_142
_SAMPLED = {"gradient": "sampled"}
_WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "float32": ("native", {}),
    "sampled": ("native", _SAMPLED),
    "sampled, variance 1": ("native", _SAMPLED | {"gradient_variance": 1.0}),
    "bf16": ("native bf16", {}),
    "sampled, bf16": ("native bf16", _SAMPLED),
}
"""Our ways to train by name: engine, and changes of the config."""
_DENSE = ("float32", "bf16")
_OLDER, _PBG, _PEAK = "older", "PBG", "roofline"
_AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
"""Variables by which torch's libraries, of this environment and of PBG's, use no more than AVX2."""
_CHOICE = """\
from pbg_tasks.native.library import library
if library().pbg_use_instruction_set(b"{0}"):
    raise SystemExit("{0}: this CPU lacks it")
"""
"""Run by Python when it starts, since an older version has no option for it."""


class _Task(NamedTuple):
    config: Mapping[str, Any]
    flops: int
    """Of an edge, when every gradient is computed."""
    edges: int
    """Of a round."""
    theirs: int
    """Edges of a round of PBG."""
    ways: tuple[str, ...] = _DENSE
    trained: int = 0
    """Edges before the first round."""

    @classmethod
    def night(
        cls, graph: RandomGraph, model: Document, directory: Path, *, edges: int, theirs: int, **changes: int
    ) -> _Task:
        """Return the task of a model without sampled gradients.

        Both sides of an edge have its candidates, with three products of each; a product multiplies and adds.
        """
        config = graph.write({**model, **changes}, directory)
        candidates = config["num_batch_negs"] + config["num_uniform_negs"]
        return cls(config, 2 * 3 * 2 * candidates * config["dimension"], edges, theirs)

    def without_halves(self) -> _Task:
        """Return the task without bfloat16, as for a CPU that lacks it."""
        return self._replace(ways=tuple(way for way in self.ways if "bf16" not in way))


def main(
    checkout: Annotated[Path, typer.Argument(help="Root of the older version.")],
    data: Annotated[Path, typer.Option(help="Folder with the data sets.")] = Path("../shared/data"),
    rounds: Annotated[int, typer.Option(help="Of each side.")] = 7,
    epochs: Annotated[int, typer.Option(help="Of FB15k, before it is timed.")] = 3,
    instruction_set: Annotated[str, typer.Option(help="Of both, such as avx2; the best of this CPU else.")] = "",
    *,
    other: Annotated[bool, typer.Option("--other", help="Other sizes and another loss.")] = False,
) -> None:
    """Time all of them and print their ratios."""
    print(environment())
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        tools = Tools(root, cache_directory(), data, rounds)
        limits = _AVX2 if instruction_set == "avx2" else {}
        if instruction_set:
            print(f"by {instruction_set}")
            (root / "sitecustomize.py").write_text(_CHOICE.format(instruction_set), encoding="ascii")
        fb = fb15k(tools.fb15k(), root / "fb15k")
        known = _Task(fb, FB_FLOPS, 20_000, 5_000, tuple(_WAYS), epochs * _FB_EDGES)
        night = partial(_Task.night, RandomGraph(1_000_000, 2_000_000), USUAL)
        wide = partial(_Task.night, RandomGraph(1_000_000, 2_000_000), LIVEJOURNAL)
        if other:
            tasks = {
                "FB15k, logistic": known._replace(config=fb | {"loss_fn": "logistic"}),
                "64 numbers": night(root / "64", edges=700_000, theirs=120_000, dimension=64),
                "200 numbers": night(root / "200", edges=300_000, theirs=60_000, dimension=200),
                "200 candidates": night(root / "more", edges=300_000, theirs=60_000, num_uniform_negs=150),
            }
        else:
            tasks = {
                "FB15k": known,
                "usual night": night(root / "usual", edges=500_000, theirs=100_000),
                "LiveJournal's model": wide(root / "wide", edges=200_000, theirs=20_000),
            }
        table = [["task", "version", "edges/cpu-s", "times the older (min - max)", "times PBG (min - max)", _PEAK]]
        for name, task in tasks.items():
            whole = not instruction_set or instruction_set in BFLOAT16
            timed = _timed(task if whole else task.without_halves(), checkout, tools, limits)
            table += [[name, *cells] for cells in timed]
            print(*aligned(table[:1] + [row for row in table if row[0] == name]), sep="\n", flush=True)


def _timed(task: _Task, checkout: Path, tools: Tools, limits: Mapping[str, str]) -> list[list[str]]:
    root = tools.directory
    with ExitStack() as stack:
        sides = {}
        for version, where, way in ((_OLDER, checkout, "float32"), *((way, ROOT, way) for way in task.ways)):
            engine, changes = _WAYS[way]
            side = stack.enter_context(
                Worker(
                    Path(sys.executable),
                    "benchmarks.speed.steps:Ours",
                    {"config": {**task.config, **changes}, "variants": [engine], "workers": 1},
                    root / "log",
                    {"PYTHONPATH": f"{root}:{where.absolute()}", **limits},
                    where,
                )
            )
            left = task.trained
            while left > 0:
                left -= side("train", variant=engine, edges=left).value
            say(f"{version}: ready")
            sides[version] = partial(side, "train", variant=engine, edges=task.edges)
        sides[_PEAK] = partial(side, "multiply")
        pbg = stack.enter_context(tools.theirs("Training", environment=limits, config=task.config, workers=1))
        sides[_PBG] = partial(pbg, "train", edges=task.theirs)
        found = in_turns(tools.pairs, sides)
    rates = {version: [per_cpu_second(done) for done in found[version]] for version in sides}
    peaks = rates.pop(_PEAK)
    rows = []
    for version, mine in rates.items():
        older, theirs = _ratio(mine, rates[_OLDER]), _ratio(mine, rates[_PBG])
        rows.append([version, human_count(statistics.median(mine)), older, theirs])
        if version in (_OLDER, "float32"):
            shares = (rate * task.flops / peak for rate, peak in zip(mine, peaks, strict=True))
            rows[-1].append(number(statistics.median(shares), "share"))
        else:
            rows[-1].append("")
    return rows


def _ratio(mine: Sequence[float], others: Sequence[float]) -> str:
    ratios = sorted(one / other for one, other in zip(mine, others, strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} - {ratios[-1]:.2f})"


if __name__ == "__main__":
    typer.run(main)
