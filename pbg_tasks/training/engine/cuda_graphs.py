"""Steps recorded as CUDA graphs.

One launch replaces those of a hundred kernels, most of which are shorter than their launch. A graph repeats the same
kernels on the same memory. So batches of one shape share a graph, their numbers are copied to the memory that it reads,
and it is kept no longer than the tables with which it was recorded.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from pbg_tasks.training.engine.device import stream

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from torch import Tensor

    from pbg_tasks.training.engine.step import Figures

    Inputs = Mapping[str, Tensor]

RECORD_AFTER = 16
"""Number of batches of a shape before it is recorded.

Recording waits for the device and takes as long as some ten batches; a recorded one takes a third of the time.
"""


_recording = threading.Lock()


class Recorder(Protocol):
    """Recorder of a computation."""

    def __call__(self, compute: Callable[[], Figures]) -> Callable[[], Figures]:
        """Return a function that repeats ``compute`` on the same memory.

        The recorder may return before anything was computed.
        """
        ...


class CudaRecorder:
    """Recorder of CUDA graphs, which share the memory of their temporaries.

    Args:
        generator: generator of the steps' draws, on the same device; each repetition goes on where the last ended.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._pool, self._generator = torch.cuda.graph_pool_handle(), generator
        self._stream = stream(generator.device, "recording")  # torch's own is one for all GPUs

    def __call__(self, compute: Callable[[], Figures]) -> Callable[[], Figures]:
        """Record ``compute`` without computing it."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        # Other threads of this process may continue their work, but for a recording, which empties all GPUs' caches.
        with _recording, torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
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
    """Recorded steps of a bucket, by the shapes of their batches.

    Args:
        record: makes recordings.
    """

    def __init__(self, record: Recorder) -> None:
        self._record = record
        self._seen: Counter[Hashable] = Counter()
        self._recorded: dict[Hashable, _Recorded] = {}

    def run(self, key: Hashable, inputs: Inputs, compute: Callable[[Inputs], Figures]) -> Figures | None:
        """Run a step by its recording, if its shape is common.

        Args:
            key: everything beside the shapes of the inputs that determines the computation.
            inputs: tensors that differ from batch to batch.
            compute: the step; it must keep nothing between two calls.

        Returns:
            The step's figures, valid until the next step; None: it is not recorded, and nothing was computed.
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
