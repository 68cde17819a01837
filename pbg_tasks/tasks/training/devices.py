"""Training on several GPUs in one process.

Each GPU is a rank: a thread that leases buckets, as the processes of a gang do. What goes between processes over the
network stays in this process here: partitions go from GPU to GPU, and questions are calls.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.memory.tables import largest_bytes
from pbg_tasks.tasks.training.eviction import Notice
from pbg_tasks.tasks.training.gang import SHARE_SECONDS, Resources, lead
from pbg_tasks.training.data.edge_files import LockedEdges
from pbg_tasks.training.data.partitions import counts_by_type
from pbg_tasks.training.engine.resident import on_host
from pbg_tasks.training.ranks.coordinator_client import CoordinatorClient
from pbg_tasks.training.ranks.group.member import ThreadMember
from pbg_tasks.training.ranks.leases import check_useful
from pbg_tasks.training.ranks.memory_shares import device_part, gang_part
from pbg_tasks.training.ranks.parameters.server import ParameterServer
from pbg_tasks.training.ranks.partitions.on_devices import DevicePartitions
from pbg_tasks.training.ranks.partitions.server import PartitionServer
from pbg_tasks.training.ranks.rank import Links

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointWriter
    from pbg_tasks.config.results import TrainFindings
    from pbg_tasks.tasks.training.gang import TrainingTarget
    from pbg_tasks.tasks.training.job import Job
    from pbg_tasks.training.data.partitions import PartitionKey
    from pbg_tasks.training.data.tables import Table
    from pbg_tasks.training.engine.resident import ResidentDevice

_LIMIT_SECONDS = 35.0  # in which the other threads of a broken gang have to end


def train_on(devices: Sequence[ResidentDevice], target: TrainingTarget, scratch: Path) -> TrainFindings:
    """Train in this process, on several devices side by side.

    Args:
        devices: one for each thread; the first is that of this thread, which also commits.
        target: the training.
        scratch: local directory.

    Raises:
        ConfigError: every bucket needs the same partition.
        EvictedError: SIGTERM came; the trained state is stored, as far as there was time.
        PbgError: the error of the thread that failed first; likewise.
    """
    check_useful(target.config, len(devices), "GPUs")
    with Notice.taken() as notice, target.claim() as writer:
        job = target.job(writer.version)
        with notice.gently() as member:
            gang = _ThreadGang(devices, job, writer, scratch, ThreadMember(member.evicted))
            with gang.running():
                return lead(gang.ranks[0], writer, gang.coordinator, gang.links[0], world=len(devices))


class _ThreadGang:
    """Ranks that are threads of this process.

    Args:
        devices: of the ranks.
        job: the training.
        writer: of its checkpoint.
        scratch: local directory.
        member: of all threads.

    Attributes:
        ranks: resources of each rank.
        coordinator: of the gang.
        links: of each rank.
    """

    def __init__(
        self, devices: Sequence[ResidentDevice], job: Job, writer: CheckpointWriter, scratch: Path, member: ThreadMember
    ) -> None:
        self._devices, self._member = devices, member
        self._version = writer.version
        world, job = len(devices), _read_by_threads(job)
        forecast = job.check_memory(writer.store, device_part(job.config, world), devices=world)
        self.ranks: list[Resources] = []
        for number, device in enumerate(devices):
            device.use()
            own = scratch / f"gpu-{number}"
            own.mkdir()
            prepared = forecast, job.make_engine(number, device)
            self.ranks.append(Resources(job, writer.files, writer.partial, own, rank=number, prepared=prepared))
        self.coordinator = self.ranks[0].coordinator(writer, members=world, share_every=SHARE_SECONDS)
        interval = job.config.store_interval
        self._partitions = PartitionServer(self._store, interval=interval, on_error=member.fail)
        self._trained_bytes = _trained_bytes(job, world)
        servers = [ParameterServer() for _ in devices]
        self.links = [self._link(number, servers) for number in range(world)]

    def _link(self, number: int, servers: Sequence[ParameterServer]) -> Links:
        client = CoordinatorClient.local(self.coordinator, self._member.check, rank=number)
        rank = self.ranks[number]
        return Links(
            client,
            self._member,
            rank.partition_store,
            rank.exchange(servers, self._member),
            records=client,
            partitions=DevicePartitions(self._partitions, self._devices[number], trained=self._trained_bytes),
            server=self._partitions,
        )

    def _store(self, key: PartitionKey, table: Table, lease: int) -> None:
        """Store a partition behind the training, and report it to the coordinator."""
        links = self.links[0]
        stored = links.partition_store.put(key, on_host(table), f"{lease}.0", lease=lease)
        links.records.stored(embeddings_file_name(*key, links.partition_store.stamp.version), stored)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the other ranks' threads while this one leads."""
        threads = [
            threading.Thread(target=self._follow, args=(number,), name=f"GPU {number}", daemon=True)
            for number in range(1, len(self.ranks))
        ]
        self._devices[0].use()
        with ExitStack() as stack:
            stack.enter_context(self._partitions)
            for links in self.links:
                stack.callback(links.exchange.close)
            for thread in threads:
                thread.start()
                stack.callback(thread.join, _LIMIT_SECONDS)
            try:
                yield
            except BaseException as error:
                self._member.fail(error)
                self.coordinator.depart(0)  # else the others would wait for it
                raise

    def _follow(self, number: int) -> None:
        """Do the work of another rank than 0."""
        try:
            self._devices[number].use()
            self.ranks[number].train(self.links[number], None, self._version)
        except BaseException as error:  # noqa: BLE001 - rank 0 raises it
            self._member.fail(error)
        finally:
            self.coordinator.depart(number)


def _trained_bytes(job: Job, world: int) -> int:
    """Return the bytes of one device's tables of its buckets."""
    part = gang_part(job.config, rank=0, world=world, servers=0)
    counts = counts_by_type(job.counts, job.config)
    return sum(largest_bytes(job.config, counts, held) for held in (part.trained, part.ahead))


def _read_by_threads(job: Job) -> Job:
    """Return a job whose files one thread at a time reads."""
    stopping, lock = job.early_stopping, threading.Lock()

    def names(key: PartitionKey) -> list[str]:
        with lock:
            return job.names(key)

    if stopping is not None:
        stopping = replace(stopping, edges=LockedEdges(stopping.edges))
    return replace(job, edges=LockedEdges(job.edges), names=names, early_stopping=stopping)
