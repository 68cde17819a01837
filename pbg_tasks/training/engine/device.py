"""Devices that train buckets, and the transfer between them and the host.

A bucket is trained in this machine's memory or in that of an accelerator. Copies go through page-locked memory, so that
they run while the host continues. Torch keeps such blocks and reuses them after their copy has ended.
"""

from __future__ import annotations

import math
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Protocol

import torch

from pbg_tasks.errors import ConfigError, ResourceError
from pbg_tasks.memory.machine import usable_cpus
from pbg_tasks.model.gpu import missing_gpu
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.choice import on_gpu
from pbg_tasks.training.environment import number_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.config.graph import DeviceName, EngineName

    Tables = Mapping[str, Table]

_STAGED_BYTES = 16 << 20  # page-locked memory of one copy
_COPYING_THREADS = 8
_KEPT_SHARE = 0.5  # of a GPU's memory, for tables between buckets; the rest is for a bucket's edges and steps
_LOCAL_RANK = "LOCAL_RANK"  # of a process among those of its machine: this package's launcher and torchrun set it


@cache
def stream(device: torch.device, purpose: str) -> torch.cuda.Stream:
    """Return the stream of a GPU for a purpose, made once.

    Torch gives out 32 streams in turn. A new one for each bucket or training would soon be another's, and a recording
    would take in the copies that another thread makes meanwhile.
    """
    del purpose  # distinguishes the streams of a GPU
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


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

    def send(self, table: Table) -> None:
        """Copy a table to the device and keep it there."""

    def bring_back(self, table: Table) -> None:
        """Copy what buckets changed back to a kept table."""

    def forget(self, table: Table) -> None:
        """Keep a table no longer; what was not brought back is lost."""

    def put(self, tensor: Tensor) -> Tensor:
        """Return a host's tensor on the device, without waiting for the copy."""
        return tensor

    def generator(self, seed: torch.Generator) -> torch.Generator:
        """Return a generator whose draws are on the device.

        Args:
            seed: determines the draws; it may be the result.
        """
        return seed

    def read(self, tensor: Tensor) -> Reading:
        """Copy the present numbers of a tensor to the host, without waiting.

        The copy is made in the order of the device's computation.
        """
        return Reading(tensor.clone())


@dataclass(slots=True)
class _Kept:
    """A table on the device between buckets.

    Attributes:
        table: the host's.
        there: the device's, with the newest numbers.
        arrived: end of its copy.
        used: end of the last bucket that used it.
        changed: whether the host's numbers are older.
    """

    table: Table
    there: Table
    arrived: torch.cuda.Event | None
    used: torch.cuda.Event | None = None
    changed: bool = False


class Accelerator(Host):
    """Memory of another device, with copies of a bucket's data.

    One thread trains. Another one sends tables before their bucket and brings them back after it, on streams of their
    own, while the first trains another bucket.

    Args:
        device: any device of torch; the CPU serves in tests of the code for others.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pinned = device.type == "cuda"
        self._kept: dict[int, _Kept] = {}

    @cached_property
    def _room(self) -> float:
        """Bytes for kept tables."""
        return torch.cuda.get_device_properties(self.device).total_memory * _KEPT_SHARE if self._pinned else math.inf

    @cached_property
    def _up(self) -> torch.cuda.Stream | None:
        return stream(self.device, "up") if self._pinned else None

    @cached_property
    def _down(self) -> torch.cuda.Stream | None:
        return stream(self.device, "down") if self._pinned else None

    def send(self, table: Table) -> None:
        """Begin to copy a table, if there is room.

        Without room beside those that are kept, a bucket that needs it copies it both ways.
        """
        tables = [table, *(kept.table for kept in self._kept.values())]
        if sum(each.embeddings.nbytes + each.row_sums.nbytes for each in tables) > self._room:
            return
        with torch.cuda.stream(self._up), suppress(torch.OutOfMemoryError):  # other programs may use the GPU, too
            there = Table(self.put(table.embeddings), self.put(table.row_sums))
            self._kept[id(table)] = _Kept(table, there, self._mark())

    def bring_back(self, table: Table) -> None:
        """Copy what buckets changed back, and wait for the copy."""
        kept = self._kept.get(id(table))
        if kept is not None and kept.changed:
            with torch.cuda.stream(self._down):
                self._follow(kept.used)
                self.fetch(kept.there.embeddings, table.embeddings)
                self.fetch(kept.there.row_sums, table.row_sums)
            kept.changed = False

    def forget(self, table: Table) -> None:
        """Free a table's memory on the device, once it is unused."""
        kept = self._kept.pop(id(table), None)
        if kept is not None and kept.used is not None:
            kept.used.synchronize()

    def _mark(self) -> torch.cuda.Event | None:
        """Return the end of what the current stream has to do."""
        return torch.cuda.current_stream(self.device).record_event() if self._pinned else None

    def _follow(self, event: torch.cuda.Event | None) -> None:
        """Let the current stream go on after an event."""
        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)

    @contextmanager
    def hold(self, lhs: Tables, rhs: Tables, *, trained: bool) -> Iterator[tuple[Tables, Tables]]:
        """Copy a bucket's tables to the device, and ``trained`` ones back.

        Kept tables are there already, and are not copied back yet. After an error nothing is copied back, and kept
        tables of the bucket have arbitrary numbers.

        One object on both sides stays one object.

        Raises:
            ResourceError: the device has not enough memory for the tables or the steps.
        """
        own = {id(table): table for side in (lhs, rhs) for table in side.values()}
        kept = {key: self._kept[key] for key in own if key in self._kept}
        with enough_memory():
            there = {
                key: Table(self.put(table.embeddings), self.put(table.row_sums))
                for key, table in own.items()
                if key not in kept
            }
            for key, each in kept.items():
                self._follow(each.arrived)
                there[key] = each.there
            yield (
                {name: there[id(table)] for name, table in lhs.items()},
                {name: there[id(table)] for name, table in rhs.items()},
            )
        used = self._mark()
        for each in kept.values():
            each.used, each.changed = used, each.changed or trained
        for key, table in own.items() if trained else ():
            if key not in kept:
                self.fetch(there[key].embeddings, table.embeddings)
                self.fetch(there[key].row_sums, table.row_sums)

    def put(self, tensor: Tensor) -> Tensor:
        """Copy a tensor of one dimension or more to the device."""
        there = torch.empty_like(tensor, device=self.device)
        stream = torch.cuda.current_stream(self.device) if self._pinned else None

        def copy(part: tuple[Tensor, Tensor]) -> None:
            source, target = part
            with torch.cuda.stream(stream):
                target.copy_(source.pin_memory() if self._pinned else source, non_blocking=True)

        self._copy(copy, tensor, there)
        return there

    def generator(self, seed: torch.Generator) -> torch.Generator:
        """Return a generator of the GPU's, or the same."""
        if not self._pinned:
            return seed
        return torch.Generator(self.device).manual_seed(int(torch.randint(2**62, (), generator=seed)))

    def read(self, tensor: Tensor) -> Reading:
        """Begin to copy a tensor to the host."""
        numbers = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pinned)
        numbers.copy_(tensor, non_blocking=True)
        if not self._pinned:
            return Reading(numbers)
        return Reading(numbers, self._mark())

    def fetch(self, source: Tensor, target: Tensor) -> None:
        """Copy a tensor back, in the order of the device's computation."""
        stream = torch.cuda.current_stream(self.device) if self._pinned else None

        def copy(part: tuple[Tensor, Tensor]) -> None:
            there, place = part
            with torch.cuda.stream(stream):
                reading = self.read(there)
            place.copy_(reading.wait())

        self._copy(copy, source, target)

    def _copy(self, copy: Callable[[tuple[Tensor, Tensor]], None], source: Tensor, target: Tensor) -> None:
        """Copy part by part.

        One thread fills page-locked memory at a fifth of the speed at which a GPU reads it.
        """
        parts = list(zip(_parts(source), _parts(target), strict=True))
        in_parallel(copy, parts, min(len(parts), _COPYING_THREADS, usable_cpus()) if self._pinned else 1)


@contextmanager
def enough_memory() -> Iterator[None]:
    """Name the keys to change where a GPU's memory runs out.

    Raises:
        ResourceError: it did.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ResourceError(
            "the GPU has not enough memory for a bucket's embeddings, edges and steps; raise num_partitions, or "
            "lower batch_size or num_uniform_negs"
        ) from error


def _parts(tensor: Tensor) -> list[Tensor]:
    row = tensor.element_size() * max(tensor[:1].numel(), 1)
    step = max(_STAGED_BYTES // row, 1)
    return [tensor[start : start + step] for start in range(0, len(tensor), step)]


def find_place(device: DeviceName, config: ModelConfig, engine: EngineName = "auto") -> Host:
    """Return the device of a training.

    A GPU is made this thread's current one.

    Args:
        device: ``cpu``, ``cuda``, or ``auto``: a GPU where torch finds one.
        config: its ``num_gpus`` above 0 means ``cuda``.
        engine: that computes; with ``native``, ``auto`` is no GPU.

    Raises:
        ResourceError: the training needs a GPU, and torch finds none.
        ConfigError: this machine has more ranks than GPUs, or the config is for the CPU.
    """
    if not on_gpu(device, config, engine):
        return Host()
    if config.embedding_precision == "bf16":
        raise ConfigError("embedding_precision: bf16 is for the CPU; set device: cpu, or embedding_precision: f32")
    if torch.cuda.is_available():
        index = _own_gpu()
        torch.cuda.set_device(index)  # streams and recordings use the current device
        return Accelerator(torch.device("cuda", index))
    raise no_gpu(config)


def no_gpu(config: ModelConfig) -> ResourceError:
    """Return the error of a training without the GPU it needs."""
    key = f"num_gpus: {config.num_gpus}" if config.num_gpus else "device: cuda"
    return ResourceError(
        f"{key}: {missing_gpu()}; set device: cpu (and num_gpus: 0), or train where there is a GPU and "
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
