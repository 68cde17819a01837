"""A training by a gang: rank 0 claims the checkpoint and leads, the others follow, partition servers serve."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import PartialObjects, claim, open_committed, open_directory
from pbg_tasks.errors import ConfigError, ConflictError, NotFoundError, PbgError
from pbg_tasks.formats.model import ModelState
from pbg_tasks.progress import say
from pbg_tasks.tasks.eviction import Notice, end_at_once, evictable, on_sigterm
from pbg_tasks.train.course import Course
from pbg_tasks.train.partition_files import Stamp
from pbg_tasks.train.ranks.coordinator import Coordinator
from pbg_tasks.train.ranks.desk import Desk
from pbg_tasks.train.ranks.gang import Gang
from pbg_tasks.train.ranks.gate import Gate
from pbg_tasks.train.ranks.holdings import gang_part
from pbg_tasks.train.ranks.lead import Lead
from pbg_tasks.train.ranks.leases import useful_ranks
from pbg_tasks.train.ranks.membership import SERVICE as HEARTBEAT
from pbg_tasks.train.ranks.membership import Roll
from pbg_tasks.train.ranks.parameter_exchange import ParameterExchange
from pbg_tasks.train.ranks.parameter_server import ParameterServer
from pbg_tasks.train.ranks.rank import Links, RankTrainer, depart, keep, withdraw
from pbg_tasks.train.ranks.services import JOIN_SECONDS, LEASES, RECORDS, Services
from pbg_tasks.train.ranks.shared import SharedState
from pbg_tasks.train.ranks.shelf import Shelf
from pbg_tasks.train.remnant import continues

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointFiles, CheckpointWriter, Names, Progress
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.memory import GangPart
    from pbg_tasks.storage import Store
    from pbg_tasks.tasks.context import Result
    from pbg_tasks.tasks.job import Job
    from pbg_tasks.train.ranks.gang import Place
    from pbg_tasks.train.ranks.member import Member
    from pbg_tasks.train.ranks.wire import Connection

TOKEN = "PBG_RUN_TOKEN"  # noqa: S105 - the name of a variable
SHARE_SECONDS = 10.0
"""Between two stores of the shared parameters of a gang of several, at least."""


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
    """Train in this process alone; what is stored of an iteration is gone on with, whether a gang left it or a process.

    Raises:
        EvictedError: the process was told to end; what it had trained is stored, as far as there was time.
    """
    with Notice.taken() as notice, undertaking.claim() as writer:
        job = undertaking.job(writer.version)
        if writer.progress is None or _follows(writer.progress, job):
            return job.run(writer, scratch, notice)
        with notice.gently() as member:
            part = gang_part(job.config, rank=0, world=1, servers=0)
            seat = _Seat(job, writer.files, writer.partial, scratch, rank=0, part=part)
            coordinator = seat.coordinator(writer, members=1, share_every=0.0)
            desk = Desk.local(coordinator, member.check)
            links = Links(desk, member, seat.shelf, seat.exchange([ParameterServer()], member))
            return _led(seat, writer, coordinator, links, world=1)


def _follows(progress: Progress, job: Job) -> bool:
    """Tell whether one process can go on with an iteration in its own order, as one that was told to end left it."""
    course = Course(job.config, job.edges, seed=job.seed)
    iteration = next((step for step in course.plan if step == progress.iteration), None)
    return iteration is not None and continues(progress, course.pieces(iteration), course.order)


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
    if place.rank:
        with Notice.taken(), on_sigterm(end_at_once):
            return _follow(_join(place, undertaking), place, undertaking, scratch)
    with Notice.taken(), on_sigterm(end_at_once), undertaking.claim() as writer:
        return _lead(_join(place, undertaking), place, undertaking, writer, scratch)


def _join(place: Place, undertaking: Undertaking) -> Gang:
    return Gang.join(place, undertaking.spec, token=os.environ.get(TOKEN), timeout=JOIN_SECONDS)


def _lead(gang: Gang, place: Place, undertaking: Undertaking, writer: CheckpointWriter, scratch: Path) -> Result:
    members = place.world + place.servers
    roll = Roll(range(members))
    with evictable() as member, ExitStack() as stack:
        here = Services(gang, place, member, {HEARTBEAT: roll.serve})
        found = {"version": writer.version, "writer_epoch": writer.partial.writer_epoch}
        stack.enter_context(here.open(found))
        stack.enter_context(roll)  # so that members are let go before the listener closes
        job, part = undertaking.job(writer.version), _part(place, undertaking.config)
        seat = _Seat(job, writer.files, writer.partial, scratch, rank=0, part=part)
        share_every = SHARE_SECONDS if place.world > 1 else 0.0
        coordinator = seat.coordinator(writer, members=members, share_every=share_every)
        services = {LEASES: coordinator.serve, RECORDS: coordinator.serve_records}
        here.serve(seat.shelf, stack, services)
        here.find(Desk.local(coordinator, member.check))
        return _led(
            seat, writer, coordinator, here.links(partial(seat.exchange, member=member), stack), world=place.world
        )


def _led(seat: _Seat, writer: CheckpointWriter, coordinator: Coordinator, links: Links, *, world: int) -> Result:
    job = seat.job
    seat.course.check_resumable(writer, seat.start)
    seat.course.catch_up(writer)
    lead = Lead(job.config, coordinator, writer, course=seat.course, shelf=seat.shelf, start=seat.start, world=world)
    job.say_config(writer)
    writer.sweep()
    trainer = seat.trainer(links, lead)
    trainer.run(seat.course.plan[writer.version :])
    result = job.result(writer, seat.engine, seat.forecast, lead.figures, lead.stats)
    return result | {"ranks": world, "rank_0": trainer.work.to_json()}


def _follow(gang: Gang, place: Place, undertaking: Undertaking, scratch: Path) -> Result:
    with evictable() as member, ExitStack() as stack:
        here = Services(gang, place, member, {})
        stack.enter_context(here.open({}))
        version = here.agreed["version"]
        files = undertaking.newest()
        if version != (found := files.version if files is not None else 0):
            raise ConflictError(
                f"{undertaking.store.url}: is at version {found}, rank 0 found {version}: another gang trains here, "
                "or this rank sees another store"
            )
        objects = PartialObjects(undertaking.store, undertaking.prefix, here.agreed["writer_epoch"])
        job = undertaking.job(version)
        if place.role == "partition-server":
            return _keep(here, member, job, objects, scratch, version, stack)
        seat = _Seat(job, files, objects, scratch, rank=place.rank, part=_part(place, job.config))
        here.serve(seat.shelf, stack)
        here.find()
        trainer = seat.trainer(here.links(partial(seat.exchange, member=member), stack), None)
        trainer.run(seat.course.plan[version:])
        return {"rank": place.rank, **trainer.work.to_json()}


def _keep(
    here: Services, member: Member, job: Job, objects: PartialObjects, scratch: Path, version: int, stack: ExitStack
) -> Result:
    """Keep partitions in memory until the training has ended."""
    job.prepare_server(objects.store, _part(here.place, job.config))
    course = Course(job.config, job.edges, seed=job.seed)
    shelf = Shelf(job.config, objects, scratch, here.place.rank, Stamp(version, course.info(None)))
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


def _part(place: Place, config: ConfigSchema) -> GangPart:
    return gang_part(config, rank=place.rank, world=place.world, servers=config.num_partition_servers)


class _Seat:
    """What a trainer has of its own, before it knows the others."""

    def __init__(
        self,
        job: Job,
        files: CheckpointFiles | None,
        objects: PartialObjects,
        scratch: Path,
        *,
        rank: int,
        part: GangPart,
    ) -> None:
        config = job.config
        self.job, self.rank = job, rank
        self.forecast, self.engine = job.prepare(objects.store, part, rank=rank)
        self.gate = self.engine.gate = Gate(self.engine.workers)
        self.course = Course(config, job.edges, seed=job.seed)
        self.start = job.start(files, scratch)
        state = self.start.model(ModelState(*self.engine.parameters()))
        if state is not None:
            self.engine.load_parameters(state.params, state.sums)
        self.shelf = Shelf(config, objects, scratch, rank, Stamp(0, self.course.info(None)))
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
