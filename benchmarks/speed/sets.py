"""Steps of the native engine by each instruction set here.

Plain vectors of four floats, which every CPU has, are what the others are compared with.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.speed import steps
from benchmarks.speed.measurement import Measurement, in_turns
from benchmarks.speed.workloads import LIVEJOURNAL, RandomGraph, fb15k
from pbg_tasks.native.coverage import BFLOAT16
from pbg_tasks.native.library import library
from pbg_tasks.progress import say

if TYPE_CHECKING:
    from benchmarks.speed.harness import Tools

PLAIN = "portable"
SETS = (PLAIN, "avx2", "avx512", *BFLOAT16)
_NOTE = "one thread; theirs are plain vectors of four floats"
_HALF_NOTE = f"{_NOTE}, in float32; ours rounds products to bfloat16"


def use(name: str) -> bool:
    """Let the native library of this process compute by a set.

    Returns whether there is a library and the CPU has the set.
    """
    loaded = library()
    return loaded is not None and loaded.pbg_use_instruction_set(name.encode("ascii")) == 0


def sets_here() -> list[str]:
    """Return the sets of this CPU; none without the library."""
    best = library()
    if best is None:
        return []
    chosen = best.pbg_instruction_set().decode("ascii")
    found = [name for name in SETS if use(name)]
    use(chosen)
    return found


class Ours(steps.Ours):
    """The native engine with one instruction set.

    Args:
        config: as PBG reads it.
        instruction_set: of ``SETS``.
    """

    def __init__(self, config: dict[str, Any], instruction_set: str) -> None:
        if not use(instruction_set):
            raise ValueError(f"{instruction_set}: this CPU lacks it")
        variant = "native bf16" if instruction_set in BFLOAT16 else "native"
        super().__init__(config, [variant], workers=1)
        self._variant = variant

    def step(self, edges: int) -> int:
        """Train that many edges and return their number."""
        return self.train(self._variant, edges)


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:  # noqa: ARG001 - never quick
    """Compare the sets of this CPU with plain vectors."""
    here = sets_here()
    if not here:
        say("sets: skipped, the native library was not built")
        return []
    graph = RandomGraph(200_000, 500_000)
    tasks = {
        "FB15k, 400 numbers": (fb15k(tools.fb15k(), tools.directory / "fb15k"), 4_000),
        "1,024 numbers": (graph.write(LIVEJOURNAL, tools.directory / "wide"), 20_000),
        "100 numbers": (graph.write(LIVEJOURNAL | {"dimension": 100}, tools.directory / "narrow"), 100_000),
    }
    found = []
    for what, (config, edges) in tasks.items():
        with ExitStack() as stack:
            sides = {}
            for name in here:
                worker = stack.enter_context(tools.ours(f"{__name__}:Ours", config=config, instruction_set=name))
                sides[name] = partial(worker, "step", edges=edges)
            rounds = in_turns(tools.pairs, sides)
        for name in here[1:]:
            note = _HALF_NOTE if name in BFLOAT16 else _NOTE
            title = f"{what}: {name}"
            found.append(Measurement.rate(title, "edges/cpu-s", rounds[name], rounds[PLAIN], note=note))
    return found
