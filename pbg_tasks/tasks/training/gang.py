"""Training by a gang.

Rank 0 claims the checkpoint and leads, the others follow, partition servers serve.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import PartialObjects, claim, open_committed
from pbg_tasks.checkpoint.plain import newest
from pbg_tasks.checkpoint.reader import read_head
from pbg_tasks.checkpoint.writer_heartbeat import PATIENCE_SECONDS, SILENCE_SECONDS
from pbg_tasks.config.results import RankFindings
from pbg_tasks.config.support import check_alone
from pbg_tasks.errors import ConfigError, ConflictError, NotFoundError, PbgError
from pbg_tasks.formats.model import ModelState
from pbg_tasks.tasks.training.eviction import GRACE, Notice, end_at_once, evictable, on_sigterm
from pbg_tasks.training.data.partition_files import Stamp
from pbg_tasks.training.engine.resident import ResidentDevice
from pbg_tasks.training.environment import number_of
from pbg_tasks.training.loop import train_iterations
from pbg_tasks.training.partial_iteration import continues
from pbg_tasks.training.ranks.coordinator import Coordinator
from pbg_tasks.training.ranks.coordinator_client import CoordinatorClient
from pbg_tasks.training.ranks.group.gang import Gang
from pbg_tasks.training.ranks.group.member_registry import SERVICE as HEARTBEAT
from pbg_tasks.training.ranks.group.member_registry import MemberRegistry
from pbg_tasks.training.ranks.leader import Leader
from pbg_tasks.training.ranks.leases import check_useful
from pbg_tasks.training.ranks.memory_shares import gang_part
from pbg_tasks.training.ranks.parameters.exchange import ParameterExchange
from pbg_tasks.training.ranks.parameters.server import ParameterServer
from pbg_tasks.training.ranks.parameters.step_lock import StepLock
from pbg_tasks.training.ranks.partitions.client import check_sendable
from pbg_tasks.training.ranks.partitions.partition_store import PartitionStore
from pbg_tasks.training.ranks.rank import Links, RankWork, depart, keep, withdraw
from pbg_tasks.training.ranks.services import JOIN_SECONDS, LEASES, RECORDS, Services
from pbg_tasks.training.ranks.shared import SharedState
from pbg_tasks.training.ranks.transport.certificates import VARIABLES, Certificates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointFiles, CheckpointWriter, Names, PartialRecord
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.config.results import Stored, TrainFindings
    from pbg_tasks.memory.forecast import Forecast
    from pbg_tasks.memory.gang import GangPart
    from pbg_tasks.storage import Store
    from pbg_tasks.tasks.training.job import Job
    from pbg_tasks.training.engine.base import Engine
    from pbg_tasks.training.ranks.group.gang import RankEnv
    from pbg_tasks.training.ranks.group.member import Member
    from pbg_tasks.training.ranks.transport.renewal import Requester

TOKEN = "PBG_RUN_TOKEN"  # noqa: S105 - the name of a variable
STARTUP = "PBG_STARTUP_SECONDS"
"""Variable with the seconds in which all pods of a gang may start."""
SHARE_SECONDS = 10.0
"""Least time between two stores of a gang's shared parameters."""


@dataclass(frozen=True, slots=True)
class TrainingTarget:
    """A training and its checkpoint directory.

    Attributes:
        config: PBG's config, paths included.
        store: of the checkpoint directory.
        prefix: its key.
        spec: hash of the config or run spec that is trained.
        job: the training, when so many iterations are committed.
        adopt: files of a version, where PBG may have written the directory.
        common: hash of all that ranks must have in common; empty: ``spec`` is.
    """

    config: ConfigSchema
    store: Store
    prefix: str
    spec: str
    job: Callable[[int], Job]
    adopt: Names | None = None
    common: str = ""

    def claim(self) -> AbstractContextManager[CheckpointWriter]:
        """Become the directory's writer.

        One that got SIGTERM may store for as long as its grace, which is taken to be that of this process.
        """
        patience = max(PATIENCE_SECONDS, (number_of(GRACE) or 0) + SILENCE_SECONDS)
        return claim(self.store, self.prefix, self.spec, adopt=self.adopt, patience=patience)

    def newest(self) -> CheckpointFiles | None:
        """Open the newest version; None when there is none."""
        if self.adopt is not None:  # as rank 0 finds it: a start at version 0 may lack files
            head, _ = read_head(self.store, self.prefix)
            return newest(self.store, self.prefix, head, self.adopt).files
        try:
            return open_committed(self.store, self.prefix)[1]
        except NotFoundError:
            return None


def train_here(target: TrainingTarget, scratch: Path) -> TrainFindings:
    """Train in this process alone.

    An iteration that was stored in part is continued, whether a gang or a single process left it.

    Raises:
        EvictedError: SIGTERM came; the trained state is stored, as far as there was time.
    """
    with Notice.taken() as notice, target.claim() as writer:
        job = target.job(writer.version)
        if writer.progress is None or _follows(writer.progress, job):
            return job.run(writer, scratch, notice)
        check_alone(job.config, who="the rest of an epoch that ranks, or other batches or orders of buckets, began")
        with notice.gently() as member:
            part = gang_part(job.config, rank=0, world=1, servers=0)
            resources = Resources(
                job, writer.files, writer.partial, scratch, rank=0, prepared=job.prepare(writer.store, part)
            )
            coordinator = resources.coordinator(writer, members=1, share_every=0.0)
            client = CoordinatorClient.local(coordinator, member.check)
            exchange = resources.exchange([ParameterServer()], member)
            links = Links(client, member, resources.partition_store, exchange, records=client)
            return lead(resources, writer, coordinator, links, world=1)


def _follows(progress: PartialRecord, job: Job) -> bool:
    """Whether one process can continue an iteration in its own order.

    True for an iteration that an evicted single process left, and for one beyond a lowered ``num_epochs``.
    """
    iteration_plan = job.iteration_plan()
    if progress.iteration.number > len(iteration_plan.plan):
        return True  # nothing is trained, and the record stays
    iteration = next((step for step in iteration_plan.plan if step.is_same(progress.iteration)), None)
    return iteration is not None and continues(progress, iteration_plan.edge_chunks(iteration), iteration_plan.order)


def train_as(env: RankEnv, target: TrainingTarget, scratch: Path) -> Stored:
    """Train as one rank of a gang, until training or gang end.

    Returns:
        For rank 0 the figures of the training, for others those of their own work.

    Raises:
        RankLostError: another rank was lost, or never came.
        EvictedError: SIGTERM came to this process or another one, if only while it waited for the others.
        ConflictError: another gang trains into this directory.
    """
    config = target.config
    check_useful(config, env.world, "ranks", report=env.rank == 0)
    if env.rank:
        with Notice.taken(), on_sigterm(end_at_once):
            return _follow(_join(env, target), env, target, scratch)
    with Notice.taken(), on_sigterm(end_at_once), target.claim() as writer:
        return _leader(_join(env, target), env, target, writer, scratch)


def _join(env: RankEnv, target: TrainingTarget) -> Gang:
    certificates = Certificates.from_environment()
    if target.config.rank_tls and certificates is None:
        raise ConfigError(
            f"rank_tls: this rank has no certificates; set {', '.join(VARIABLES.values())} on every machine, or start "
            "the ranks by `pbg train --ranks` or launch.launcher, which make them"
        )
    token, timeout = os.environ.get(TOKEN), JOIN_SECONDS + (number_of(STARTUP) or 0)
    return Gang.join(env, target.common or target.spec, token=token, certificates=certificates, timeout=timeout)


def _leader(gang: Gang, env: RankEnv, target: TrainingTarget, writer: CheckpointWriter, scratch: Path) -> TrainFindings:
    members = env.world + env.servers
    registry = MemberRegistry(range(members))
    with evictable() as member, ExitStack() as stack:
        here = Services(gang, env, member, {HEARTBEAT: registry.serve})
        epoch, url = writer.partial.writer_epoch, target.store.url
        found = {"version": writer.version, "writer_epoch": epoch, "url": url}
        stack.enter_context(here.open(found))
        stack.enter_context(registry)  # so that members are let go before the listener closes
        job, part = target.job(writer.version), _part(env, target.config)
        check_sendable(job.config, job.counts)
        resources = Resources(
            job, writer.files, writer.partial, scratch, rank=0, prepared=job.prepare(writer.store, part)
        )
        share_every = SHARE_SECONDS if env.world > 1 else 0.0
        coordinator = resources.coordinator(writer, members=members, share_every=share_every)
        services = {LEASES: coordinator.serve, RECORDS: coordinator.answer_all}
        here.serve(resources.partition_store, stack, services)
        here.find(CoordinatorClient.local(coordinator, member.check))
        return lead(
            resources,
            writer,
            coordinator,
            here.links(partial(resources.exchange, member=member), stack),
            world=env.world,
        )


def lead(
    resources: Resources, writer: CheckpointWriter, coordinator: Coordinator, links: Links, *, world: int
) -> TrainFindings:
    """Train as rank 0 to the end, and return the training's figures."""
    job = resources.job
    resources.iteration_plan.check_resumable(writer, resources.start)
    resources.iteration_plan.catch_up(writer)
    leader = Leader(
        job.config,
        coordinator,
        writer,
        iteration_plan=resources.iteration_plan,
        partition_store=resources.partition_store,
        start=resources.start,
        world=world,
    )
    job.write_config(writer)
    writer.sweep()
    coordinator.over = resources.iteration_plan.stops(writer.manifest)
    work = resources.train(links, leader, writer.version)
    found = job.findings(writer, resources.engine, resources.forecast, leader.commits)
    return found.model_copy(update={"ranks": world, "rank_0": work.figures.to_json()})


def _follow(gang: Gang, env: RankEnv, target: TrainingTarget, scratch: Path) -> RankFindings:
    with evictable() as member, ExitStack() as stack:
        here = Services(gang, env, member, {})
        stack.enter_context(here.open({}))
        version, writer_epoch = here.agreed["version"], here.agreed["writer_epoch"]
        head, _ = read_head(target.store, target.prefix)
        if head is None or head.writer_epoch < writer_epoch:  # rank 0 has claimed it
            raise ConfigError(
                f"{target.store.url}: is not the checkpoint directory of rank 0, {here.agreed['url']}; give all ranks "
                "one checkpoint_path that each of them can reach, such as s3://"
            )
        files = target.newest()
        if version != (found := files.version if files is not None else 0):
            raise ConflictError(
                f"{target.store.url}: is at version {found}, rank 0 found {version}: another gang trains here, "
                "or this rank sees another store"
            )
        objects = PartialObjects(target.store, target.prefix, writer_epoch)
        job = target.job(version)
        check_sendable(job.config, job.counts)
        if env.role == "partition-server":
            return _keep(here, member, job, objects, scratch, version, stack)
        resources = Resources(
            job,
            files,
            objects,
            scratch,
            rank=env.rank,
            prepared=job.prepare(objects.store, _part(env, job.config), rank=env.rank),
        )
        here.serve(resources.partition_store, stack)
        here.find()
        work = resources.train(here.links(partial(resources.exchange, member=member), stack), None, version)
        return RankFindings.model_validate({"rank": env.rank, **work.figures.to_json()})


def _keep(
    here: Services, member: Member, job: Job, objects: PartialObjects, scratch: Path, version: int, stack: ExitStack
) -> RankFindings:
    """Keep partitions in memory until the training has ended."""
    job.prepare_server(objects.store, _part(here.env, job.config))
    iteration_plan = job.iteration_plan()
    partition_store = PartitionStore(
        job.config, objects, scratch, here.env.rank, Stamp(version, iteration_plan.info(None))
    )
    here.serve(partition_store, stack)
    client = here.find()
    if here.server is None:
        raise RuntimeError("a partition server without partitions: a bug")
    try:
        over = client.meet("start")
        for iteration in () if over else iteration_plan.plan[version:]:
            partition_store.stamp = Stamp(iteration.number, iteration_plan.info(iteration))
            if keep(iteration, client, here.server):
                break
    except PbgError as error:
        member.fail(error)
        with suppress(PbgError):
            withdraw(client, here.server, None)
        raise
    depart(client, leader=False)
    return RankFindings(rank=here.env.rank, role=here.env.role)


def _part(env: RankEnv, config: ConfigSchema) -> GangPart:
    return gang_part(config, rank=env.rank, world=env.world, servers=config.num_partition_servers)


class Resources:
    """Resources of one trainer, opened before it connects to others.

    Args:
        job: the training.
        files: of the newest version; None when there is none.
        objects: of the iteration under way.
        scratch: local directory of the trainer alone.
        rank: its own.
        prepared: forecast of its memory, and its engine.
    """

    def __init__(
        self,
        job: Job,
        files: CheckpointFiles | None,
        objects: PartialObjects,
        scratch: Path,
        *,
        rank: int,
        prepared: tuple[Forecast, Engine],
    ) -> None:
        config = job.config
        self.job, self.rank = job, rank
        self.forecast, self.engine = prepared
        place = self.engine.place
        self._adopt = place.take if isinstance(place, ResidentDevice) else None
        self.step_lock = self.engine.step_lock = StepLock(self.engine.workers)
        self.iteration_plan = job.iteration_plan()
        self.start = job.start(files, scratch)
        state = self.start.model(ModelState(*self.engine.parameters()))
        if state is not None:
            self.engine.load_parameters(state.params, state.sums)
        self.partition_store = PartitionStore(config, objects, scratch, rank, Stamp(0, self.iteration_plan.info(None)))
        self.shared = SharedState(config, self.engine, self.start)
        if self._adopt is not None:
            self.shared.tables = {name: self._adopt(table) for name, table in self.shared.tables.items()}

    def coordinator(self, writer: CheckpointWriter, *, members: int, share_every: float) -> Coordinator:
        """Return the coordinator of a gang; see its class."""
        return Coordinator(
            self.job.config,
            self.job.counts,
            writer,
            members=members,
            share=lambda number: self.shared.store(number, self.partition_store, self.step_lock),
            share_every=share_every,
            cold=self.job.is_cold(writer),
        )

    def exchange(self, servers: Sequence[Requester | ParameterServer], member: Member) -> ParameterExchange:
        """Return the exchange of shared parameters with the servers of all ranks."""
        config = self.job.config
        return ParameterExchange(
            self.shared.tensors(),
            servers,
            self.step_lock,
            interval=config.parameter_interval,
            bandwidth=config.parameter_bandwidth,
            on_error=member.fail,
        )

    def train(self, links: Links, leader: Leader | None, version: int) -> RankWork:
        """Train the iterations after a version as a rank of the gang."""
        work = RankWork(
            self.job.config,
            iteration_plan=self.iteration_plan,
            edges=self.job.edges,
            start=self.start,
            shared=self.shared,
            links=links,
            leader=leader,
            rank=self.rank,
            anchor=self.job.anchor,
            adopt=self._adopt,
        )
        train_iterations(self.iteration_plan.plan[version:], work, self.job.trainer(self.engine))
        return work
