"""Gangs whose ranks are threads of the test.

Everything but the network between them is real.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial

from pbg_tasks.checkpoint import claim
from pbg_tasks.errors import EvictedError
from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.training.data.edge_files import FiledEdges
from pbg_tasks.training.data.partition_files import Stamp
from pbg_tasks.training.data.partitions import partition_keys
from pbg_tasks.training.edge_chunks import EdgeChunkTrainer
from pbg_tasks.training.engine.on_torch import TorchEngine
from pbg_tasks.training.iteration_plan import IterationPlan
from pbg_tasks.training.loop import train_iterations
from pbg_tasks.training.ranks.coordinator import Coordinator
from pbg_tasks.training.ranks.coordinator_client import CoordinatorClient
from pbg_tasks.training.ranks.group.member import Member
from pbg_tasks.training.ranks.leader import Leader
from pbg_tasks.training.ranks.parameters.exchange import ParameterExchange
from pbg_tasks.training.ranks.parameters.server import ParameterServer
from pbg_tasks.training.ranks.parameters.step_lock import StepLock
from pbg_tasks.training.ranks.partitions.client import PartitionClient
from pbg_tasks.training.ranks.partitions.partition_store import PartitionStore
from pbg_tasks.training.ranks.partitions.server import PartitionServer
from pbg_tasks.training.ranks.rank import Links, RankWork
from pbg_tasks.training.ranks.shared import SharedState
from pbg_tasks.training.starting_point import StartingPoint
from tests.training.buckets import ROWS, SPEC

SEED = 7


class ToldMember(Member):
    """Member that learns of a failure from another thread, without a heartbeat."""

    others = ()

    def fail(self, error):
        del error
        for member in self.others:
            member.evicted.set()


class Rank:
    """One rank, up to its links."""

    def __init__(self, number, config, buckets, writer, scratch, engine=None, counts=None):
        self.number, self.config = number, config
        self.scratch = scratch / f"rank-{number}"
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.engine = engine or TorchEngine(config, 1)
        self.step_lock = self.engine.step_lock = StepLock(self.engine.workers)
        self.edges = FiledEdges(buckets)
        self.counts = dict.fromkeys(partition_keys(config), ROWS) | (counts or {})
        files = writer.files if writer.files.names else None
        self.start = StartingPoint(config, self.counts, files, grows=False, seed=SEED, scratch=self.scratch)
        self.iteration_plan = IterationPlan(config, self.edges, seed=SEED)
        state = self.start.model(None)
        if state is not None:
            self.engine.load_parameters(state.params, state.sums)
        self.partition_store = PartitionStore(
            config, writer.partial, self.scratch, number, Stamp(0, self.iteration_plan.info(None))
        )
        self.shared = SharedState(config, self.engine, self.start)
        self.member = self.engine.member = ToldMember()

    def prepare(self, client, leader=None, anchor=None, **links):
        self.work = RankWork(
            self.config,
            iteration_plan=self.iteration_plan,
            edges=self.edges,
            start=self.start,
            shared=self.shared,
            links=Links(client, self.member, self.partition_store, records=client, **links),
            leader=leader,
            rank=self.number,
            anchor=anchor and anchor(self.scratch),
        )

    def run(self, left):
        train_iterations(left, self.work, EdgeChunkTrainer(self.config, self.engine, SEED))


class Watched(TorchEngine):
    """Reports every bucket before it is trained."""

    def __init__(self, config, tell):
        super().__init__(config, 1)
        self._tell = tell

    def train_bucket(self, *args, **kwargs):
        self._tell()
        return super().train_bucket(*args, **kwargs)


def train(
    config, buckets, store, scratch, *, world=1, engines=None, crash=False, anchor=None, counts=None, share_every=0.0
):
    """Train with ``world`` ranks; return their figures.

    Raises the first error of any rank. With ``crash`` a rank that fails leaves nothing behind, and the others learn of
    it.
    """
    with claim(store, "", SPEC, patience=0.1) as writer, ExitStack() as stack:
        ranks = [
            Rank(number, config, buckets, writer, scratch, engines and engines[number], counts)
            for number in range(world)
        ]
        first = ranks[0]
        coordinator = Coordinator(
            config,
            first.counts,
            writer,
            members=world,
            share=lambda number: first.shared.store(number, first.partition_store, first.step_lock),
            share_every=share_every,
            cold=True,
        )
        for rank in ranks:
            rank.member.others = [other.member for other in ranks]
        leader = Leader(
            config,
            coordinator,
            writer,
            iteration_plan=first.iteration_plan,
            partition_store=first.partition_store,
            start=first.start,
            world=world,
        )
        writer.sweep()
        servers = [ParameterServer() for _ in ranks]
        links = [
            {"exchange": ParameterExchange(rank.shared.tensors(), servers, rank.step_lock, on_error=rank.member.fail)}
            for rank in ranks
        ]
        if config.num_partition_servers and world > 1:
            keepers = [stack.enter_context(keeper(rank, coordinator)) for rank in ranks]
            for server, link in zip(keepers, links, strict=True):
                link["partitions"], link["server"] = PartitionClient(keepers), server
        for rank, link in zip(ranks, links, strict=True):
            rank.prepare(client(coordinator, rank), leader if rank is first else None, anchor, **link)
        left = first.iteration_plan.plan[writer.version :]
        run(ranks, left, crash=crash)
        return [rank.work.figures for rank in ranks]


def client(coordinator, rank):
    return CoordinatorClient(lambda kind, fields: coordinator.answer(rank.number, kind, fields), rank.member.check)


def keeper(rank, coordinator):
    def store(key, table, lease):
        stored = rank.partition_store.put(key, table, f"{lease}.{rank.number}", lease=lease)
        client(coordinator, rank).stored(embeddings_file_name(*key, rank.partition_store.stamp.version), stored)

    return PartitionServer(store, interval=rank.config.store_interval, on_error=rank.member.fail)


def run(ranks, left, *, crash):
    errors = []

    def train_rank(rank):
        try:
            rank.run(left)
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)
            rank.member.fail(error)

    if crash:
        for rank in ranks:
            rank.work._withdraw = partial(withdraw, rank.work)
    threads = [threading.Thread(target=train_rank, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a rank hangs"
    if errors:  # a rank that was only asked to end has the least informative error
        raise min(errors, key=lambda error: isinstance(error, EvictedError))


def withdraw(work, error):
    """Leave as a killed process does.

    A rank that only learns of another's end leaves as usual.
    """
    if isinstance(error, Exception):
        RankWork._withdraw(work, error)
