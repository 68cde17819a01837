"""A training by a gang: rank 0 claims the checkpoint and leads, the others follow, partition servers serve."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pbg_tasks.checkpoint import PartialObjects, claim, open_committed, open_directory
from pbg_tasks.errors import ConfigError, ConflictError, EvictedError, NotFoundError, PbgError
from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.formats.model import ModelState
from pbg_tasks.progress import say
from pbg_tasks.train.course import Course
from pbg_tasks.train.partition_files import Stamp
from pbg_tasks.train.ranks.coordinator import Coordinator
from pbg_tasks.train.ranks.desk import Desk
from pbg_tasks.train.ranks.gang import Gang
from pbg_tasks.train.ranks.gate import Gate
from pbg_tasks.train.ranks.lead import Lead
from pbg_tasks.train.ranks.leases import useful_ranks
from pbg_tasks.train.ranks.member import Member
from pbg_tasks.train.ranks.membership import SERVICE as HEARTBEAT
from pbg_tasks.train.ranks.membership import Membership, Roll
from pbg_tasks.train.ranks.parameter_exchange import ParameterExchange
from pbg_tasks.train.ranks.parameter_server import ParameterServer
from pbg_tasks.train.ranks.partition_client import PartitionClient
from pbg_tasks.train.ranks.partition_server import PartitionServer
from pbg_tasks.train.ranks.rank import Links, RankTrainer, depart, keep, withdraw
from pbg_tasks.train.ranks.shared import SharedState
from pbg_tasks.train.ranks.shelf import Shelf
from pbg_tasks.train.ranks.wire import Listener, connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointFiles, CheckpointWriter, Names
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.storage import Store
    from pbg_tasks.tasks.context import Result
    from pbg_tasks.tasks.job import Job
    from pbg_tasks.train.partitions import PartitionKey
    from pbg_tasks.train.ranks.gang import Place
    from pbg_tasks.train.ranks.wire import Address, Connection
    from pbg_tasks.train.tables import Table

TOKEN = "PBG_RUN_TOKEN"  # noqa: S105 - the name of a variable
JOIN_SECONDS = 600.0
"""How long ranks wait for the others to come: their images may have to be pulled first."""
CONNECT_SECONDS = 20.0
LEASES, RECORDS = "leases", "records"
"""Services of the coordinator: who trains what, and what is stored behind the training."""
SHARE_SECONDS = 10.0
"""Between two records that store the shared parameters of a gang of several."""


@dataclass(frozen=True, slots=True)
class Undertaking:
    """What is trained, and into which checkpoint directory.

    Attributes:
        config: PBG's config, paths included.
        store: of the checkpoint directory.
        prefix: its key.
        spec: hash of what is trained.
        job: the training, when so many iterations are committed.
        adopt: files of a version, where PBG may have written the directory.
    """

    config: ConfigSchema
    store: Store
    prefix: str
    spec: str
    job: Callable[[int], Job]
    adopt: Names | None = None

    def claim(self) -> AbstractContextManager[CheckpointWriter]:
        """Become the directory's writer."""
        return claim(self.store, self.prefix, self.spec, adopt=self.adopt)

    def newest(self) -> CheckpointFiles | None:
        """Open the newest version; None when there is none."""
        try:
            if self.adopt is not None:
                return open_directory(self.store, self.prefix, expect=self.adopt)
            return open_committed(self.store, self.prefix)[1]
        except NotFoundError:
            return None


def train_here(undertaking: Undertaking, scratch: Path) -> Result:
    """Train in this process alone; what a gang has left of an iteration is gone on with at its buckets.

    Raises:
        EvictedError: the process was told to end in such an iteration.
    """
    with undertaking.claim() as writer:
        job = undertaking.job(writer.version)
        if writer.progress is None:
            return job.run(writer, scratch)
        with evictable() as member:
            seat = _Seat(job, writer.files, writer.partial, scratch, rank=0)
            coordinator = seat.coordinator(writer, members=1, share_every=0.0)
            desk = Desk.local(coordinator, member.check)
            links = Links(desk, member, seat.shelf, seat.exchange([ParameterServer()], member))
            return _led(seat, writer, coordinator, links, world=1)


def train_as(place: Place, undertaking: Undertaking, scratch: Path) -> Result:
    """Train as one rank of a gang, to the end of the training or of the gang.

    Returns:
        Of rank 0 the figures of the training, of others what they did.

    Raises:
        RankLostError: another rank was lost, or never came.
        EvictedError: this process, or another, was told to end, if only while it waited for the others to come.
        ConflictError: another gang trains into this directory.
    """
    config = undertaking.config
    limit = useful_ranks(config)
    if limit == 1 and place.world > 1:
        raise ConfigError(
            f"{place.world} ranks cannot train at once: every bucket needs the same partition; raise num_partitions to "
            f"{2 * place.world} or more, or train with one rank and more workers"
        )
    if place.world > limit and place.rank == 0:
        say(f"with these num_partitions only {limit} of {place.world} ranks have a bucket at any time; the others wait")
    join = _joining(place, undertaking)
    if place.rank:
        with _on_sigterm(_end_at_once), join() as gang:
            return _follow(gang, place, undertaking, scratch)
    with _on_sigterm(_end_at_once), undertaking.claim() as writer, join() as gang:
        return _lead(gang, place, undertaking, writer, scratch)


def _joining(place: Place, undertaking: Undertaking) -> Callable[[], AbstractContextManager[Gang]]:
    return lambda: Gang.join(place, undertaking.spec, token=os.environ.get(TOKEN), timeout=JOIN_SECONDS)


def _lead(gang: Gang, place: Place, undertaking: Undertaking, writer: CheckpointWriter, scratch: Path) -> Result:
    members = place.world + place.servers
    roll = Roll(range(members))
    with evictable() as member, ExitStack() as stack:
        here = _Here(gang, place, member, {HEARTBEAT: roll.serve})
        found = {"version": writer.version, "writer_epoch": writer.partial.writer_epoch}
        stack.enter_context(here.open(found))
        stack.enter_context(roll)  # so that members are let go before the listener closes
        seat = _Seat(undertaking.job(writer.version), writer.files, writer.partial, scratch, rank=0)
        share_every = SHARE_SECONDS if place.world > 1 else 0.0
        coordinator = seat.coordinator(writer, members=members, share_every=share_every)
        services = {LEASES: coordinator.serve, RECORDS: coordinator.serve_records}
        here.serve(seat.shelf, stack, services)
        here.find(Desk.local(coordinator, member.check))
        return _led(seat, writer, coordinator, here.links(seat, stack), world=place.world)


def _led(seat: _Seat, writer: CheckpointWriter, coordinator: Coordinator, links: Links, *, world: int) -> Result:
    job = seat.job
    seat.course.check_resumable(writer, seat.start)
    lead = Lead(job.config, coordinator, writer, course=seat.course, shelf=seat.shelf, start=seat.start, world=world)
    job.say_config(writer)
    writer.sweep()
    trainer = seat.trainer(links, lead)
    trainer.run(seat.course.plan[writer.version :])
    result = job.result(writer, seat.engine, seat.forecast, lead.figures, lead.stats)
    return result | {"ranks": world, "rank_0": trainer.work.to_json()}


def _follow(gang: Gang, place: Place, undertaking: Undertaking, scratch: Path) -> Result:
    with evictable() as member, ExitStack() as stack:
        here = _Here(gang, place, member, {})
        stack.enter_context(here.open({}))
        version = here.agreed["version"]
        files = undertaking.newest()
        if version != (found := files.version if files is not None else 0):
            raise ConflictError(
                f"{undertaking.store.url}: is at version {found}, rank 0 found {version}: another gang trains here, "
                "or this rank sees another store"
            )
        partial = PartialObjects(undertaking.store, undertaking.prefix, here.agreed["writer_epoch"])
        job = undertaking.job(version)
        if place.role == "partition-server":
            return _keep(here, member, job, partial, scratch, version, stack)
        seat = _Seat(job, files, partial, scratch, rank=place.rank)
        here.serve(seat.shelf, stack)
        here.find()
        trainer = seat.trainer(here.links(seat, stack), None)
        trainer.run(seat.course.plan[version:])
        return {"rank": place.rank, **trainer.work.to_json()}


def _keep(
    here: _Here, member: Member, job: Job, partial: PartialObjects, scratch: Path, version: int, stack: ExitStack
) -> Result:
    """Keep partitions in memory until the training has ended."""
    course = Course(job.config, job.edges, seed=job.seed)
    shelf = Shelf(job.config, partial, scratch, here.place.rank, Stamp(version, course.info(None)))
    here.serve(shelf, stack)
    desk = here.find()
    if here.server is None:
        raise RuntimeError("a partition server without partitions: a bug")
    try:
        for iteration in course.plan[version:]:
            shelf.stamp = Stamp(iteration.number, course.info(iteration))
            keep(iteration, desk, here.server)
    except PbgError as error:
        member.fail(error)
        with suppress(PbgError):
            withdraw(desk, here.server, None)
        raise
    depart(desk, lead=False)
    return {"rank": here.place.rank, "role": here.place.role}


class _Seat:
    """What a trainer has of its own, before it knows the others."""

    def __init__(
        self, job: Job, files: CheckpointFiles | None, partial: PartialObjects, scratch: Path, *, rank: int
    ) -> None:
        config = job.config
        self.job, self.rank = job, rank
        self.forecast, self.engine = job.prepare(partial.store)
        self.gate = self.engine.gate = Gate(self.engine.workers)
        self.course = Course(config, job.edges, seed=job.seed)
        self.start = job.start(files, scratch)
        state = self.start.model(ModelState(*self.engine.parameters()))
        if state is not None:
            self.engine.load_parameters(state.params, state.sums)
        self.shelf = Shelf(config, partial, scratch, rank, Stamp(0, self.course.info(None)))
        self.shared = SharedState(config, self.engine, self.start)

    def coordinator(self, writer: CheckpointWriter, *, members: int, share_every: float) -> Coordinator:
        return Coordinator(
            self.job.config,
            self.job.counts,
            writer,
            members=members,
            share=lambda number: self.shared.store(number, self.shelf, self.gate),
            share_every=share_every,
            cold=self.job.is_cold(writer),
        )

    def exchange(self, servers: Sequence[Connection | ParameterServer], member: Member) -> ParameterExchange:
        config = self.job.config
        if len(servers) > 1 and self.shared.tables and self.engine.place.device.type != "cpu":
            # The device's copy of such a table would overwrite what others change in it during a bucket.
            listed = ", ".join(sorted(self.shared.tables))
            raise ConfigError(
                f"several ranks with GPUs cannot share entity types of one partition ({listed}): raise their "
                "num_partitions, set device: cpu (and num_gpus: 0), or train with one rank"
            )
        return ParameterExchange(
            self.shared.tensors(),
            servers,
            self.gate,
            interval=config.parameter_interval,
            bandwidth=config.parameter_bandwidth,
            on_error=member.fail,
        )

    def trainer(self, links: Links, lead: Lead | None) -> RankTrainer:
        return RankTrainer(
            self.job.config,
            engine=self.engine,
            course=self.course,
            edges=self.job.edges,
            start=self.start,
            shared=self.shared,
            links=links,
            lead=lead,
            rank=self.rank,
            seed=self.job.seed,
            anchor=self.job.anchor,
        )


class _Here:
    """This process's services, and its way to those of others.

    Attributes:
        agreed: what rank 0 found.
        server: the partitions that this process keeps for others; None if none.
    """

    def __init__(
        self, gang: Gang, place: Place, member: Member, services: Mapping[str, Callable[[Connection], None]]
    ) -> None:
        self.place = place
        self.agreed: Mapping[str, Any] = {}
        self.server: PartitionServer | None = None
        self._gang, self._member, self._credentials = gang, member, gang.credentials
        self._listener = Listener(gang.credentials, services, host=gang.host)
        self._parameters = ParameterServer()
        self._addresses: list[Address] = []
        self._to_lead: list[Connection] = []

    @contextmanager
    def open(self, found: Mapping[str, Any]) -> Iterator[None]:
        """Learn where the others are, and belong to the gang from now on: whoever falls silent is noticed.

        Args:
            found: by rank 0, of the checkpoint.
        """
        with self._listener as listener:
            shared = self._gang.share({"address": list(listener.address), **found})
            self.agreed = shared[0]
            self._addresses = [(host, port) for host, port in (each["address"] for each in shared)]
            membership = Membership(self._addresses[0], self._credentials)
            membership.on_break(lambda: self._hang_up(membership))
            self._member.join(membership)
            try:
                yield
            except BaseException as error:
                membership.leave(error)
                raise
            membership.leave()

    def serve(
        self, shelf: Shelf, stack: ExitStack, services: Mapping[str, Callable[[Connection], None]] | None = None
    ) -> None:
        """Offer the other services, and wait until everyone does: a rank may have read gigabytes before."""
        config, self._shelf = shelf.config, shelf
        offered = dict(services or {})
        if self.place.role == "trainer":
            offered["parameters"] = self._parameters.serve
        if config.num_partition_servers < 0 or self.place.role == "partition-server":
            server = PartitionServer(self._store, interval=config.store_interval, on_error=self._member.fail)
            self.server = stack.enter_context(server)
            offered["partitions"] = server.serve
        self._listener.offer(offered)
        self._gang.barrier(timeout=JOIN_SECONDS, check=self._member.check)

    def find(self, desk: Desk | None = None) -> Desk:
        """Find the coordinator: ``desk`` where it is here."""
        self._records = desk or self._remote(RECORDS)
        self._desk = desk or self._remote(LEASES)
        return self._desk

    def _remote(self, service: str) -> Desk:
        connection = self._connect(0, service)
        self._to_lead.append(connection)
        return Desk.remote(connection, self._member.check)

    def _hang_up(self, membership: Membership) -> None:
        """Wait no longer for answers of a rank 0 that is silent."""
        if membership.leaderless:
            for connection in self._to_lead:
                connection.close()

    def links(self, seat: _Seat, stack: ExitStack) -> Links:
        """Connect to every other rank."""
        config, world = self._shelf.config, self.place.world
        partitions = None
        if config.num_partition_servers:
            keepers = range(world) if config.num_partition_servers < 0 else range(world, world + self.place.servers)
            partitions = PartitionClient([self._link(rank, "partitions", self.server) for rank in keepers])
        servers = [self._link(rank, "parameters", self._parameters) for rank in range(world)]
        exchange = seat.exchange(servers, self._member)
        stack.callback(exchange.close)
        return Links(self._desk, self._member, self._shelf, exchange, partitions, self.server)

    def _link(self, rank: int, service: str, own: Any) -> Any:  # noqa: ANN401 - what ``service`` has here, or a way to it
        return own if rank == self.place.rank else self._connect(rank, service)

    def _connect(self, rank: int, service: str) -> Connection:
        return connect(self._addresses[rank], self._credentials, service, timeout=CONNECT_SECONDS)

    def _store(self, key: PartitionKey, table: Table, lease: int) -> None:
        """Store a partition behind the training, and tell the coordinator."""
        stored = self._shelf.put(key, table, f"{lease}.{self.place.rank}", lease=lease)
        self._records.stored(embeddings_file_name(*key, self._shelf.stamp.version), stored)


@contextmanager
def evictable() -> Iterator[Member]:
    """Let SIGTERM be a request to store what there is and end, for the length of the context."""
    member = Member()
    with _on_sigterm(member.evicted.set):
        yield member


@contextmanager
def _on_sigterm(act: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_at_once() -> None:
    raise EvictedError("told to end (SIGTERM) outside of training; what is stored stays")
