"""Steps recorded as CUDA graphs: one launch for what are a hundred kernels, most of them shorter than their launch.

A graph repeats the same kernels on the same memory. So batches of one shape share one, their numbers are copied to
where it reads them, and it lives no longer than the tables it was recorded with.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from torch import Tensor

    from pbg_tasks.train.engine.step import Figures

    Inputs = Mapping[str, Tensor]

RECORD_AFTER = 64
"""Batches of a shape before it is recorded: recording waits for the device, which few batches would not make up for."""


class Recorder(Protocol):
    """Records what is computed, to do it again."""

    def __call__(self, compute: Callable[[], Figures]) -> Callable[[], Figures]:
        """Return what repeats ``compute`` on the same memory; nothing need have been computed yet."""
        ...


class CudaRecorder:
    """Records CUDA graphs; what is temporary in one lies in the same memory as in another."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Figures]) -> Callable[[], Figures]:
        """Record ``compute`` without computing it."""
        graph = torch.cuda.CUDAGraph()
        # Other threads of this process may go on with what they do on the host.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            figures = compute()

        def replay() -> Figures:
            graph.replay()
            return figures

        return replay


@dataclass(frozen=True, slots=True)
class _Recorded:
    inputs: Inputs
    replay: Callable[[], Figures]


class Graphs:
    """The recorded steps of a bucket, by the shapes of their batches.

    Args:
        record: makes them.
    """

    def __init__(self, record: Recorder) -> None:
        self._record = record
        self._seen: Counter[Hashable] = Counter()
        self._recorded: dict[Hashable, _Recorded] = {}

    def run(self, key: Hashable, inputs: Inputs, compute: Callable[[Inputs], Figures]) -> Figures | None:
        """Do a step by its recording, if batches like it are common.

        Args:
            key: what, beside the shapes of the inputs, decides what is computed.
            inputs: what differs from batch to batch.
            compute: the step; it may keep nothing between two calls.

        Returns:
            What the step showed, until the next one; None: it is not recorded, and nothing was done.
        """
        key = (key, *((name, value.shape) for name, value in inputs.items()))
        self._seen[key] += 1
        if self._seen[key] <= RECORD_AFTER:
            return None
        if key not in self._recorded:
            own = {name: value.clone() for name, value in inputs.items()}
            self._recorded[key] = _Recorded(own, self._record(lambda: compute(own)))
        recorded = self._recorded[key]
        for name, value in inputs.items():
            recorded.inputs[name].copy_(value)
        return recorded.replay()
