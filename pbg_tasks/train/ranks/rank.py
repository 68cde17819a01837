"""One rank's training: leases a bucket, brings its partitions, trains it, hands it in, until the iteration is whole.

A rank that is told to end, or whose gang is broken, stops at the next batch and stores what it has: how far the bucket
is trained goes into the record, so that whoever resumes goes on with the batch after it.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pbg_tasks.errors import PbgError, RankLostError
from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.progress import Progress
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.train.data.background import Background
from pbg_tasks.train.data.partition_files import Stamp
from pbg_tasks.train.data.partitions import Layout, PartitionKey
from pbg_tasks.train.edge_chunks import EdgeChunkTrainer
from pbg_tasks.train.engine.base import Position
from pbg_tasks.train.ranks.messages import report_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.checkpoint import Iteration, StoredObject
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.train.data.edge_files import EdgeChunk, EdgeFiles
    from pbg_tasks.train.data.tables import Table
    from pbg_tasks.train.engine.anchor import Anchor
    from pbg_tasks.train.engine.base import Engine
    from pbg_tasks.train.iteration_plan import IterationPlan
    from pbg_tasks.train.ranks.coordinator_client import CoordinatorClient
    from pbg_tasks.train.ranks.group.member import Member
    from pbg_tasks.train.ranks.leader import Leader
    from pbg_tasks.train.ranks.messages import Grant, Report, Source
    from pbg_tasks.train.ranks.parameters.exchange import ParameterExchange
    from pbg_tasks.train.ranks.partitions.client import PartitionClient
    from pbg_tasks.train.ranks.partitions.partition_store import PartitionStore
    from pbg_tasks.train.ranks.partitions.server import PartitionServer
    from pbg_tasks.train.ranks.shared import SharedState
    from pbg_tasks.train.starting_point import StartingPoint

FLUSH_SECONDS = 600.0
"""For what a partition server has not stored at the end of an iteration."""
LAST_FLUSH_SECONDS = 12.0
"""For the same in a gang that is broken."""
FAREWELL_SECONDS = 8.0
"""In which others may hand in their last reports."""
SHARED_SECONDS = 20.0
"""For what all share at the end of a gang that is broken, once all else is stored."""


@dataclass(slots=True)
class Work:
    """What a rank did.

    Attributes:
        buckets: trained, to their end or not.
        edges: trained.
        seconds: of training.
    """

    buckets: int = 0
    edges: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, float]:
        """Return it as a result has it."""
        return {"buckets": self.buckets, "edges": self.edges, "training_seconds": round(self.seconds, 3)}


@dataclass(frozen=True, slots=True)
class Links:
    """How a rank reaches the others.

    Attributes:
        client: the coordinator.
        member: this rank as the gang sees it.
        partition_store: partitions in the store.
        exchange: of shared parameters.
        partitions: servers that have partitions in memory; None: they go through the store.
        server: the one of them that is here.
    """

    client: CoordinatorClient
    member: Member
    partition_store: PartitionStore
    exchange: ParameterExchange
    partitions: PartitionClient | None = None
    server: PartitionServer | None = None


class RankTrainer:
    """Trains what the coordinator leases to this rank.

    Args:
        config: PBG's config.
        engine: that computes; its steps go through the gate.
        iteration_plan: of the training.
        edges: the edges.
        start: where partitions come from that nobody has trained.
        shared: this rank's copy of what all have.
        links: to the others.
        leader: what rank 0 does besides.
        rank: this one.
        seed: of the run.
        anchor: draws vectors to those of the night before.

    Attributes:
        work: what it did.
    """

    def __init__(
        self,
        config: ConfigSchema,
        *,
        engine: Engine,
        iteration_plan: IterationPlan,
        edges: EdgeFiles,
        start: StartingPoint,
        shared: SharedState,
        links: Links,
        leader: Leader | None,
        rank: int,
        seed: int,
        anchor: Anchor | None = None,
    ) -> None:
        self.work = Work()
        self._engine, self._iteration_plan, self._edges, self._start, self._shared = (
            engine,
            iteration_plan,
            edges,
            start,
            shared,
        )
        self._links, self._leader, self._rank, self._anchor = links, leader, rank, anchor
        self._edge_chunks = EdgeChunkTrainer(config, engine, seed, iteration_plan.early_stopping)
        self._layout = Layout(config)
        self._held: dict[PartitionKey, tuple[int, Table]] = {}  # of the bucket before, by generation
        self._pending: Report | None = None
        self._io = Background("edges")

    def run(self, left: Sequence[Iteration]) -> None:
        """Train the iterations that are left.

        Raises:
            EvictedError: this process was told to end; it has stored what it had.
            RankLostError: another rank was lost; same.
            TrainingDivergedError: a loss or a row is not finite, here or at another rank.
        """
        links = self._links
        with self._io:
            try:
                over = links.client.meet("start")
                for iteration in () if over else left:
                    if self._iterate(iteration):
                        break
            except BaseException as error:
                links.exchange.close()
                with suppress(PbgError):
                    self._withdraw(error)
                raise
            depart(links.client, leader=self._leader is not None)

    def _iterate(self, iteration: Iteration) -> bool:
        """Train an iteration; return whether early stopping ends the training with it."""
        links, number = self._links, iteration.number
        links.partition_store.stamp = Stamp(number, self._iteration_plan.info(iteration))
        edge_chunks = self._iteration_plan.edge_chunks(iteration, scattered=True)
        if self._leader is not None:
            self._shared.load(self._leader.record, links.partition_store)
            self._leader.begin(iteration, edge_chunks)  # not before: from then on what all share is stored
            links.exchange.seed()
        links.client.meet(f"begin {number}")
        links.exchange.pull()
        links.client.meet(f"ready {number}")
        links.exchange.resume()
        self._train_all(iteration, edge_chunks)
        links.exchange.flush()
        if links.server is not None:
            links.server.flush(FLUSH_SECONDS)
        links.client.meet(f"trained {number}")
        links.exchange.pull()
        links.client.meet(f"pulled {number}")
        if self._leader is not None:
            tables = {PartitionKey(name, 0): table for name, table in self._shared.tables.items()}
            drawn = self._anchor is not None and tables
            self._leader.commit(iteration, partial(self._settle, tables, iteration) if drawn else None)
        return links.client.meet(f"committed {number}")

    def _train_all(self, iteration: Iteration, edge_chunks: Sequence[EdgeChunk]) -> None:
        by_bucket = {edge_chunk.bucket: edge_chunk for edge_chunk in edge_chunks}
        total = sum(edge_chunk.edges for edge_chunk in edge_chunks)
        while (grant := self._links.client.next(iteration.number, self._pending)) is not None:
            self._pending = None
            self._pending = self._train(iteration, by_bucket[grant.bucket], grant, total)
        self._pending = None

    def _train(self, iteration: Iteration, edge_chunk: EdgeChunk, grant: Grant, total: int) -> Report:
        coming = self._io.submit(self._edges.read, *edge_chunk)
        tables = self._bring(grant)
        lhs, rhs = (
            {name: tables[key] if key in tables else self._shared.tables[name] for name, key in side.items()}
            for side in self._layout.sides(edge_chunk.bucket)
        )
        edges = self._io.wait(coming)
        place = f"({edge_chunk.bucket.lhs}, {edge_chunk.bucket.rhs})"
        title = f"epoch {iteration.epoch_idx + 1}/{iteration.num_epochs}, bucket {place}"
        with Progress(title, total=edge_chunk.edges) as progress:
            progress.advance(grant.edges)
            result = self._edge_chunks.train(
                iteration,
                edge_chunk,
                edges,
                lhs,
                rhs,
                reach=self._iteration_plan.reach(iteration, grant.seen, edge_chunk, total),
                on_batch=partial(self._heed, progress, title),
                begun=Position(grant.batches, grant.edges, grant.drawn),
                stop=self._links.member.stopping,
            )
        if result.stopped is None:
            names = {key: embeddings_file_name(*key, iteration.number) for key in tables}
            self._settle({key: table for key, table in tables.items() if names[key] in grant.last}, iteration)
        self.work.buckets += 1
        self.work.edges += result.stats.count
        self.work.seconds += result.stats.seconds
        return report_of(grant, self._rank, result, self._put_away(tables, grant.lease))

    def _settle(self, tables: Mapping[PartitionKey, Table], iteration: Iteration) -> None:
        """Draw tables that the iteration will not change any more, before they are stored."""
        if self._anchor is not None:
            for key, table in tables.items():
                self._anchor.draw(key, table, iteration)

    def _heed(self, progress: Progress, title: str, count: int, loss: float) -> None:
        progress.advance(count, recent_loss=loss)
        self._links.member.doing = title

    def _bring(self, grant: Grant) -> dict[PartitionKey, Table]:
        """Return the partitions of a bucket, those that are not shared; what is here already stays."""
        version = self._links.partition_store.stamp.version
        keys = [key for key in sorted(self._layout.needs(grant.bucket)) if key.entity not in self._shared.tables]
        sources = {key: grant.sources[embeddings_file_name(*key, version)] for key in keys}
        held = {
            key: table
            for key, (generation, table) in self._held.items()
            if key in sources and generation == sources[key].generation
        }
        self._held = {}  # before anything comes, what is not needed any more goes
        missing = [key for key in keys if key not in held]
        brought = in_parallel(lambda key: self._fetch(key, sources[key]), missing, max(len(missing), 1))
        tables = held | dict(zip(missing, brought, strict=True))
        self._held = {key: (grant.lease, tables[key]) for key in keys}
        return tables

    def _fetch(self, key: PartitionKey, source: Source) -> Table:
        if source.served and self._links.partitions is not None:
            found = self._links.partitions.get(key)
            if found is None or found.lease != source.generation:
                raise RuntimeError(f"{key}: its server has generation {found and found.lease}, not {source.generation}")
            return found.table
        return self._start.table(key) if source.stored is None else self._links.partition_store.get(source.stored)

    def _put_away(self, tables: Mapping[PartitionKey, Table], lease: int) -> dict[str, StoredObject]:
        """Give partitions to their servers, or to the store; what is here stays until the next bucket is known."""
        servers = self._links.partitions
        if servers is None:
            return self._links.partition_store.put_all(tables, lease=lease)
        in_parallel(lambda key: servers.put(key, tables[key], lease), tables, max(len(tables), 1))
        return {}

    def _withdraw(self, error: BaseException) -> None:
        """Tell the others why this rank goes, and leave behind what can be kept."""
        links = self._links
        links.member.fail(error)
        try:
            if links.partitions is not None:
                withdraw(links.client, links.server, self._pending)
                return
            try:
                links.client.leave(self._pending)
            finally:
                if self._leader is not None:  # others store their partitions before they hand in what they trained
                    links.client.meet("left", seconds=LAST_FLUSH_SECONDS + FAREWELL_SECONDS)
        finally:
            if self._leader is not None:
                self._leader.wait_shared(SHARED_SECONDS)


def depart(client: CoordinatorClient, *, leader: bool) -> None:
    """Leave at the end of a training: rank 0 last, because it answers the others."""
    with suppress(RankLostError):  # everything is committed
        client.leave(None)
        if leader:
            client.meet("left", seconds=FAREWELL_SECONDS)


def withdraw(client: CoordinatorClient, server: PartitionServer | None, report: Report | None) -> None:
    """Leave a broken gang that has partitions in memory: they are stored once everyone has brought what it had."""
    with ExitStack() as then:  # from the last to the first, each whatever has become of those before
        then.callback(client.meet, "stored", seconds=FAREWELL_SECONDS)  # what others store counts, too
        if server is not None:
            then.callback(server.flush, LAST_FLUSH_SECONDS)
        then.callback(client.meet, "left", seconds=FAREWELL_SECONDS)
        client.leave(report)


def keep(iteration: Iteration, client: CoordinatorClient, server: PartitionServer) -> bool:
    """Go through an iteration as one that trains nothing, but has partitions in memory.

    Returns:
        Whether early stopping ends the training with it.
    """
    for place in ("begin", "ready"):
        client.meet(f"{place} {iteration.number}")
    client.next(iteration.number, None, give=False)
    server.flush(FLUSH_SECONDS)
    for place in ("trained", "pulled"):
        client.meet(f"{place} {iteration.number}")
    return client.meet(f"committed {iteration.number}")
