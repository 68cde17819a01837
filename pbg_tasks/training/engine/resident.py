"""GPUs of one process, each of which trains buckets of its own.

A partition stays on the GPU that trained it, and goes from there into the memory of the next: directly where the driver
connects the two (NVLink, or peers on PCIe), else through the host. Copies run beside the training, on streams of their
own, and have ended when their functions return. So have a bucket's steps when ``hold`` does. A table that one thread
gives another is therefore complete, and nothing writes to it.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING

import torch

from pbg_tasks.errors import ResourceError
from pbg_tasks.progress import say
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.device import Accelerator, enough_memory, no_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.training.engine.device import Tables


@dataclass(frozen=True, slots=True)
class PlacedTable(Table):
    """Table in the memory of a device.

    Attributes:
        place: the device.
    """

    place: ResidentDevice

    def copy(self) -> PlacedTable:
        """Return the same rows in other memory of the device.

        Raises:
            ResourceError: it has not enough.
        """
        return self.place.take(self)


class ResidentDevice(Accelerator):
    """Device whose tables stay on it from bucket to bucket.

    One thread trains; several may copy tables.
    """

    @property
    def room(self) -> float:
        """Bytes for partitions that are trained or wait for their next bucket."""
        return self._room

    @property
    def outgoing(self) -> torch.cuda.Stream | None:
        """Stream of the copies from this device; None on a CPU."""
        return self._down

    def use(self) -> None:
        """Make it the current device of this thread, which trains on it."""
        if self._pinned:
            torch.cuda.set_device(self.device)

    @contextmanager
    def hold(self, lhs: Tables, rhs: Tables, *, trained: bool) -> Iterator[tuple[Tables, Tables]]:
        """Provide a bucket's tables, which are on the device already.

        Raises:
            ResourceError: the device has not enough memory for the steps.
        """
        del trained
        with enough_memory():
            yield lhs, rhs
        if (end := self._mark()) is not None:
            end.synchronize()

    def take(self, table: Table) -> PlacedTable:
        """Copy a table to this device, from another or the host.

        Raises:
            ResourceError: it has not enough memory.
        """
        source, up = table.place if isinstance(table, PlacedTable) else None, self._up
        down = None if source is None else source.outgoing
        with enough_memory(), torch.cuda.stream(down), torch.cuda.stream(up):
            if source is None:
                embeddings, row_sums = self.put(table.embeddings), self.put(table.row_sums)
            else:
                embeddings = table.embeddings.to(self.device, copy=True, non_blocking=True)
                row_sums = table.row_sums.to(self.device, copy=True, non_blocking=True)
        for stream in (down, up):
            if stream is not None:
                stream.synchronize()
        return PlacedTable(embeddings, row_sums, self)

    def bring(self, table: Table) -> Table:
        """Copy a table of this device to the host."""
        found = Table.blank(*table.embeddings.shape)
        with torch.cuda.stream(self._down):
            self.fetch(table.embeddings, found.embeddings)
            self.fetch(table.row_sums, found.row_sums)
        return found


def on_host(table: Table) -> Table:
    """Return a table itself, or a copy of one on a device."""
    return table.place.bring(table) if isinstance(table, PlacedTable) else table


def find_devices(config: ModelConfig) -> list[ResidentDevice]:
    """Return the GPUs of a process that trains on several (``num_gpus``).

    Raises:
        ResourceError: torch finds fewer.
    """
    wanted = config.num_gpus
    if not torch.cuda.is_available():
        raise no_gpu(config)
    if (count := torch.cuda.device_count()) < wanted:
        raise ResourceError(
            f"num_gpus: {wanted}: torch finds {count} here; lower num_gpus, or let the process see more GPUs (the "
            "pod's nvidia.com/gpu, or CUDA_VISIBLE_DEVICES)"
        )
    found = [ResidentDevice(torch.device("cuda", index)) for index in range(wanted)]
    _report_apart(found)
    return found


def _report_apart(found: Sequence[ResidentDevice]) -> None:
    """Name the pairs of GPUs between which copies go through the host."""
    pairs = [(one.device, other.device) for one, other in permutations(found, 2)]
    apart = [
        f"{one.index} to {other.index}" for one, other in pairs if not torch.cuda.can_device_access_peer(one, other)
    ]
    if apart:
        say(f"num_gpus: {len(found)}: between GPUs {', '.join(apart)} partitions go through the host")
