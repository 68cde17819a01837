"""Devices that train buckets, and the transfer between them and the host.

A bucket is trained in this machine's memory or in that of an accelerator. Copies go through page-locked memory, so that
they run while the host continues. Torch keeps such blocks and reuses them after their copy has ended.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from pbg_tasks.errors import ConfigError, ResourceError
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.choice import on_gpu
from pbg_tasks.training.environment import number_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.config.graph import DeviceName

    Tables = Mapping[str, Table]

_STAGED_BYTES = 64 << 20  # page-locked memory of one copy
_LOCAL_RANK = "LOCAL_RANK"  # of a process among those of its machine: this package's launcher and torchrun set it


class Event(Protocol):
    """A point in the computation of a device (``torch.cuda.Event``)."""

    def query(self) -> bool:
        """Return whether the device has reached the point."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has reached the point."""
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """Numbers that are being copied to the host.

    Attributes:
        numbers: their destination.
        event: the end of the copy; None: it has ended.
    """

    numbers: Tensor
    event: Event | None = None

    def ready(self) -> bool:
        """Return whether ``wait`` returns at once."""
        return self.event is None or self.event.query()

    def wait(self) -> Tensor:
        """Wait for the numbers and return them."""
        if self.event is not None:
            self.event.synchronize()
        return self.numbers


class Host:
    """This machine's memory, to which nothing is copied.

    Attributes:
        device: device of the tensors.
    """

    device = torch.device("cpu")

    @contextmanager
    def hold(self, lhs: Tables, rhs: Tables, *, trained: bool) -> Iterator[tuple[Tables, Tables]]:
        """Provide a bucket's tables on the device, and bring ``trained`` ones back."""
        del trained
        yield lhs, rhs

    def put(self, tensor: Tensor) -> Tensor:
        """Return a host's tensor on the device, without waiting for the copy."""
        return tensor

    def read(self, tensor: Tensor) -> Reading:
        """Copy the present numbers of a tensor to the host, without waiting.

        The copy is made in the order of the device's computation.
        """
        return Reading(tensor.clone())


class Accelerator(Host):
    """Memory of another device, with copies of a bucket's data.

    Args:
        device: any device of torch; the CPU serves in tests of the code for others.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pinned = device.type == "cuda"

    @contextmanager
    def hold(self, lhs: Tables, rhs: Tables, *, trained: bool) -> Iterator[tuple[Tables, Tables]]:
        """Copy a bucket's tables to the device, and ``trained`` ones back.

        After an error nothing is copied back.

        One object on both sides stays one object.

        Raises:
            ResourceError: the device has not enough memory for the tables or the steps.
        """
        own = {id(table): table for side in (lhs, rhs) for table in side.values()}
        try:
            there = {key: Table(self.put(table.embeddings), self.put(table.row_sums)) for key, table in own.items()}
            yield (
                {name: there[id(table)] for name, table in lhs.items()},
                {name: there[id(table)] for name, table in rhs.items()},
            )
        except torch.OutOfMemoryError as error:
            raise ResourceError(
                "the GPU has not enough memory for a bucket's embeddings, edges and steps; raise num_partitions, or "
                "lower batch_size or num_uniform_negs"
            ) from error
        for key, table in own.items() if trained else ():
            self._fetch(there[key].embeddings, table.embeddings)
            self._fetch(there[key].row_sums, table.row_sums)

    def put(self, tensor: Tensor) -> Tensor:
        """Copy a tensor of one dimension or more to the device."""
        there = torch.empty_like(tensor, device=self.device)
        for edge_chunk, target in zip(_edge_chunks(tensor), _edge_chunks(there), strict=True):
            target.copy_(edge_chunk.pin_memory() if self._pinned else edge_chunk, non_blocking=True)
        return there

    def read(self, tensor: Tensor) -> Reading:
        """Begin to copy a tensor to the host."""
        numbers = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pinned)
        numbers.copy_(tensor, non_blocking=True)
        if not self._pinned:
            return Reading(numbers)
        return Reading(numbers, torch.cuda.current_stream().record_event())

    def _fetch(self, source: Tensor, target: Tensor) -> None:
        """Copy a tensor back.

        One part is copied from the device while the part before is written to its target.
        """
        coming: deque[tuple[Reading, Tensor]] = deque()
        for edge_chunk, place in zip(_edge_chunks(source), _edge_chunks(target), strict=True):
            coming.append((self.read(edge_chunk), place))
            if len(coming) > 1:
                reading, arrived = coming.popleft()
                arrived.copy_(reading.wait())
        for reading, arrived in coming:
            arrived.copy_(reading.wait())


def _edge_chunks(tensor: Tensor) -> list[Tensor]:
    row = tensor.element_size() * max(tensor[:1].numel(), 1)
    step = max(_STAGED_BYTES // row, 1)
    return [tensor[start : start + step] for start in range(0, len(tensor), step)]


def find_place(device: DeviceName, config: ModelConfig) -> Host:
    """Return the device of a training.

    A GPU is made this thread's current one.

    Args:
        device: ``cpu``, ``cuda``, or ``auto``: a GPU where torch finds one.
        config: its ``num_gpus: 1`` means ``cuda``.

    Raises:
        ResourceError: the training needs a GPU, and torch finds none.
        ConfigError: this machine has more ranks than GPUs, or the config is for the CPU.
    """
    if not on_gpu(device, config):
        return Host()
    if config.embedding_precision == "bf16":
        raise ConfigError("embedding_precision: bf16 is for the CPU; set device: cpu, or embedding_precision: f32")
    if torch.cuda.is_available():
        index = _own_gpu()
        torch.cuda.set_device(index)  # streams and recordings use the current device
        return Accelerator(torch.device("cuda", index))
    key = f"num_gpus: {config.num_gpus}" if config.num_gpus else "device: cuda"
    why = "finds no GPU on this machine" if torch.version.cuda else "was built without CUDA"
    raise ResourceError(
        f"{key}: torch {torch.__version__} {why}; set device: cpu (and num_gpus: 0), or train where there is a GPU and "
        "a build of torch that supports it"
    )


def _own_gpu() -> int:
    """Return the index of this process's GPU.

    It is the only one that the process sees, as in a pod, or else that of its local rank.
    """
    count, rank = torch.cuda.device_count(), number_of(_LOCAL_RANK)
    if rank is None or count == 1:
        return torch.cuda.current_device()
    if rank >= count:
        raise ConfigError(
            f"{_LOCAL_RANK} is {rank}, and this machine has {count} GPUs, from 0 to {count - 1}: start no more ranks "
            "on it than it has, or let each see one of them (CUDA_VISIBLE_DEVICES)"
        )
    return rank
