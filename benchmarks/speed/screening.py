"""Scores that ranking counts in a second, by each instruction set here.

Candidates that are no worse than the true entity are counted without a score for each (``evaluate.comparison``). That
is compared with a product of the same shape in float32 by torch, which only computes the scores.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.speed.measurement import Measurement, in_turns, per_cpu_second
from benchmarks.speed.sets import PLAIN, sets_here, use
from pbg_tasks.evaluate.comparison import Asked, compare_products
from pbg_tasks.progress import say

if TYPE_CHECKING:
    from benchmarks.speed.harness import Tools

_DIMENSIONS = (100, 400)
_QUESTIONS, _CANDIDATES = 1_000, 20_000
_BETTER = 3.0
"""Score of the true entity, in standard deviations of all scores: a trained model gives it a rank of some dozens."""
_CLOSE = 1e-4
_MOST_CLOSE = 1 << 16
_REPEATS = 3


class Ours:
    """Both sides, on vectors of normal numbers.

    Args:
        dimension: of the vectors.
    """

    def __init__(self, dimension: int) -> None:
        rng = np.random.default_rng(0)
        self._queries = rng.standard_normal((_QUESTIONS, dimension), np.float32)
        self._candidates = rng.standard_normal((_CANDIDATES, dimension), np.float32)
        wins = np.full(_QUESTIONS, _BETTER * np.sqrt(dimension), np.float32)
        self._asked = Asked(
            question=np.arange(_QUESTIONS),
            ties=wins - np.float32(_CLOSE),
            wins=wins,
            own=np.full(_QUESTIONS, -1),
            answer_start=np.zeros(_QUESTIONS + 1, np.int64),
            answers=np.empty(0, np.int64),
        )

    def count(self, instruction_set: str) -> int:
        """Count candidates by a set; return the number of scores."""
        use(instruction_set)
        for _ in range(_REPEATS):
            if compare_products(self._queries, self._candidates, self._asked, _MOST_CLOSE) is None:
                raise ValueError(f"{instruction_set}: the library asks for a tile of scores")
        return _REPEATS * _QUESTIONS * _CANDIDATES

    def multiply(self) -> int:
        """Compute the scores by torch; return their number."""
        torch.set_num_threads(1)
        queries, candidates = torch.from_numpy(self._queries), torch.from_numpy(self._candidates)
        for _ in range(_REPEATS):
            torch.mm(queries, candidates.T)
        return _REPEATS * _QUESTIONS * _CANDIDATES


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:  # noqa: ARG001 - never quick
    """Compare the sets of this CPU with torch."""
    here = sets_here()
    if not here:
        say("screening: skipped, the native library was not built")
        return []
    found = []
    for dimension in _DIMENSIONS:
        with tools.ours(f"{__name__}:Ours", dimension=dimension) as worker:
            sides = {name: partial(worker, "count", instruction_set=name) for name in here}
            rounds = in_turns(tools.pairs, sides | {"torch": partial(worker, "multiply")})
        for name in here:
            rate = statistics.median(map(per_cpu_second, rounds[name])) * 2 * dimension
            found.append(
                Measurement.rate(
                    f"{dimension} numbers: {'plain vectors' if name == PLAIN else name}",
                    "scores/cpu-s",
                    rounds[name],
                    rounds["torch"],
                    note="one thread; theirs is a float32 product, without counting",
                    details={"GFLOP/s": rate / 1e9},
                )
            )
    return found
