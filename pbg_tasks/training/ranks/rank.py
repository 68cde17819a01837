"""Work of a rank of a gang.

The rank leases a bucket, brings its partitions, and reports on it, until the iteration is trained. A rank that gets
SIGTERM, or whose gang is broken, stops at the next batch and stores what it has. The record then contains the trained
part of the bucket, so that the next gang continues with the batch after it.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pbg_tasks.errors import PbgError, RankLostError
from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.progress import Progress
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.training.data.edge_files import EdgesAhead
from pbg_tasks.training.data.partition_files import Stamp
from pbg_tasks.training.data.partitions import Layout, PartitionKey
from pbg_tasks.training.engine.held_out import held_out_count
from pbg_tasks.training.engine.pace import Position
from pbg_tasks.training.loop import Assignment
from pbg_tasks.training.ranks.messages import report_of
from pbg_tasks.training.ranks.partitions_ahead import GenerationError, PartitionsAhead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pbg_tasks.checkpoint import Iteration, StoredObject
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.training.data.edge_files import EdgeFiles
    from pbg_tasks.training.data.tables import Table
    from pbg_tasks.training.edge_chunks import EdgeChunkResult
    from pbg_tasks.training.engine.anchor import Anchor
    from pbg_tasks.training.iteration_plan import IterationPlan
    from pbg_tasks.training.loop import Tables
    from pbg_tasks.training.ranks.coordinator_client import CoordinatorClient
    from pbg_tasks.training.ranks.group.member import Member
    from pbg_tasks.training.ranks.leader import Leader
    from pbg_tasks.training.ranks.messages import Grant, Report, Reservation, Source
    from pbg_tasks.training.ranks.parameters.exchange import ParameterExchange
    from pbg_tasks.training.ranks.partitions.client import PartitionClient
    from pbg_tasks.training.ranks.partitions.on_devices import DevicePartitions
    from pbg_tasks.training.ranks.partitions.partition_store import PartitionStore
    from pbg_tasks.training.ranks.partitions.server import PartitionServer
    from pbg_tasks.training.ranks.shared import SharedState
    from pbg_tasks.training.schedule import Bucket
    from pbg_tasks.training.starting_point import StartingPoint

FLUSH_SECONDS = 600.0
"""Limit for each partition that a server stores when an iteration ends."""
LAST_FLUSH_SECONDS = 12.0
"""Limit for all of them in a gang that is broken."""
FAREWELL_SECONDS = 8.0
"""Time in which other ranks may hand in their last reports."""
SHARED_SECONDS = 20.0
"""Limit for storing the shared state at the end of a gang that is broken, after everything else is stored."""


@dataclass(slots=True)
class RankFigures:
    """Figures of one rank's training.

    Attributes:
        buckets: trained, to their end or not.
        edges: trained.
        seconds: of training.
    """

    buckets: int = 0
    edges: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, float]:
        """Return the form that a result has."""
        return {"buckets": self.buckets, "edges": self.edges, "training_seconds": round(self.seconds, 3)}


@dataclass(frozen=True, slots=True)
class Links:
    """Ways of a rank to the others.

    Attributes:
        client: the coordinator.
        member: this rank as the gang sees it.
        partition_store: partitions in the store.
        exchange: of shared parameters.
        records: the coordinator, for reports that other threads make.
        partitions: servers that have partitions in memory; None: partitions go through the store.
        server: the one of them in this process.
    """

    client: CoordinatorClient
    member: Member
    partition_store: PartitionStore
    exchange: ParameterExchange
    records: CoordinatorClient
    partitions: PartitionClient | DevicePartitions | None = None
    server: PartitionServer | None = None


class RankWork:
    """The buckets that the coordinator leases to this rank.

    Args:
        config: PBG's config.
        iteration_plan: of the training.
        edges: the edges.
        start: gives partitions that no rank has trained.
        shared: this rank's copy of the shared state.
        links: to the others.
        leader: the further duties of rank 0.
        rank: this one.
        anchor: draws vectors to those of the night before.
        adopt: moves a partition that was read to where the engine trains; None: it trains on the host's.

    Attributes:
        edges: reader of the edges.
        figures: of this rank.
    """

    def __init__(
        self,
        config: ConfigSchema,
        *,
        iteration_plan: IterationPlan,
        edges: EdgeFiles,
        start: StartingPoint,
        shared: SharedState,
        links: Links,
        leader: Leader | None,
        rank: int,
        anchor: Anchor | None = None,
        adopt: Callable[[Table], Table] | None = None,
    ) -> None:
        self.edges, self.figures = EdgesAhead(edges), RankFigures()
        self._plan, self._start = iteration_plan, start
        self._shared, self._links = shared, links
        self._leader, self._rank = leader, rank
        self._anchor, self._adopt = anchor, adopt or (lambda table: table)
        self._layout, self._eval_fraction = Layout(config), config.eval_fraction
        self._held: dict[PartitionKey, tuple[int, Table]] = {}  # of the bucket before, by generation
        self._tables: dict[PartitionKey, Table] = {}  # of the bucket under way
        self._pending: Report | None = None
        self._reserved: Reservation | None = None
        ahead = PartitionsAhead(self._fetch, self._put_behind, links.member.fail)
        self._ahead = ahead if config.partitions_ahead else None

    @contextmanager
    def training(self) -> Iterator[bool]:
        """Wait for the other ranks; yield whether the training is over already."""
        links = self._links
        with self.edges.io, self._ahead or nullcontext():
            try:
                yield links.client.meet("start")
            except BaseException as error:
                links.exchange.close()
                with suppress(PbgError):
                    self._withdraw(error)
                raise
            depart(links.client, leader=self._leader is not None)

    def begin(self, iteration: Iteration) -> None:
        """Begin an iteration, or continue one that is stored in part."""
        links, number = self._links, iteration.number
        links.partition_store.stamp = Stamp(number, self._plan.info(iteration))
        edge_chunks = self._plan.edge_chunks(iteration, scattered=True)
        self._iteration = iteration
        self._edge_chunks = {edge_chunk.bucket: edge_chunk for edge_chunk in edge_chunks}
        self._total = sum(edge_chunk.edges for edge_chunk in edge_chunks)
        if self._leader is not None:
            self._shared.load(self._leader.record, links.partition_store)
            self._leader.begin(iteration, edge_chunks)  # not before: from then on the shared state is stored
            links.exchange.seed()
        links.client.meet(f"begin {number}")
        links.exchange.pull()
        links.client.meet(f"ready {number}")
        links.exchange.resume()

    def next(self) -> Assignment | None:
        """Return the next bucket, leased; None: all of the iteration are trained."""
        check = self._ahead.check if self._ahead is not None else lambda: None
        grant = self._links.client.next(self._iteration.number, self._pending, check=check)
        self._pending = None
        if self._reserved is not None and (grant is None or grant.bucket != self._reserved.bucket):
            self.edges.forget(self._edge_chunks[self._reserved.bucket])
        self._reserved = None
        if grant is None:
            return None
        self._grant, edge_chunk = grant, self._edge_chunks[grant.bucket]
        return Assignment(
            edge_chunk,
            self._plan.reach(self._iteration, grant.seen, edge_chunk, self._total),
            begun=Position(grant.batches, grant.edges, grant.drawn),
        )

    def bring(self, assigned: Assignment) -> Tables:
        """Return the tables of a bucket."""
        tables = self._tables = self._bring(self._grant)
        if self._ahead is not None:
            self._look_ahead(self._ahead)
        shared = {PartitionKey(name, 0): table for name, table in self._shared.tables.items()}
        return self._layout.by_side(assigned.edge_chunk.bucket, shared | tables)

    def _look_ahead(self, ahead: PartitionsAhead) -> None:
        """Reserve the next bucket, and begin to read what it needs."""
        reserved = self._reserved = self._links.client.reserve(self._iteration.number)
        if reserved is not None:
            self.edges.ask(self._edge_chunks[reserved.bucket])
            names = {key: self._name(key) for key in self._partitioned(reserved.bucket)}
            ahead.read({key: reserved.sources[name] for key, name in names.items() if name in reserved.sources})

    def _partitioned(self, bucket: Bucket) -> list[PartitionKey]:
        """List the partitions of a bucket that are not shared."""
        return [key for key in sorted(self._layout.needs(bucket)) if key.entity not in self._shared.tables]

    def _name(self, key: PartitionKey) -> str:
        return embeddings_file_name(*key, self._links.partition_store.stamp.version)

    @contextmanager
    def watched(self, assigned: Assignment) -> Iterator[Callable[[int, float], None]]:
        """Show the progress of a bucket."""
        iteration, edge_chunk = self._iteration, assigned.edge_chunk
        place = f"({edge_chunk.bucket.lhs}, {edge_chunk.bucket.rhs})"
        title = f"epoch {iteration.epoch_idx + 1}/{iteration.num_epochs}, bucket {place}"
        total = edge_chunk.edges - held_out_count(edge_chunk.edges, self._eval_fraction)
        with Progress(title, total=total, begun=assigned.begun.edges) as progress:
            yield partial(self._advance, progress, title)
            progress.ends = progress.done == total  # it is not done where SIGTERM stopped it

    def _advance(self, progress: Progress, title: str, count: int, loss: float) -> None:
        progress.advance(count, recent_loss=loss)
        self._links.member.doing = title

    def stopping(self) -> bool:
        """Return whether to stop at the next batch."""
        return self._links.member.stopping()

    def report(self, result: EdgeChunkResult) -> None:
        """Put a bucket's partitions away, and prepare the report.

        ``next`` hands the report in. Where the next bucket is reserved, they are put away behind its training.
        """
        grant, tables = self._grant, self._tables
        self._tables = {}  # else the next bucket's partitions would come while these are still in memory
        if result.stopped is None:
            self._settle({key: table for key, table in tables.items() if self._name(key) in grant.last})
        self.figures.buckets += 1
        self.figures.edges += result.stats.count
        self.figures.seconds += result.stats.seconds
        objects = None
        if self._ahead is not None and self._reserved is not None and result.stopped is None:
            keep = [key for key in self._partitioned(self._reserved.bucket) if key in tables]
            self._held = {key: self._held[key] for key in keep}
            self._ahead.put(tables, grant.lease, keep)
        else:
            if self._ahead is not None:
                self._ahead.finish()  # a later generation of a partition goes after an earlier one
            objects = self._put_away(tables, grant.lease)
        self._pending = report_of(grant, self._rank, result, objects)

    def end(self) -> bool:
        """Commit the iteration together; return whether it is the training's last."""
        links, number = self._links, self._iteration.number
        if self._ahead is not None:
            self._ahead.finish()
            self._ahead.clear(links.member.check)
        links.exchange.flush()
        if links.server is not None:
            links.server.flush(FLUSH_SECONDS, each=True)
        links.client.meet(f"trained {number}")
        links.exchange.pull()
        links.client.meet(f"pulled {number}")
        if self._leader is not None:
            tables = {PartitionKey(name, 0): table for name, table in self._shared.tables.items()}
            drawn = self._anchor is not None and tables
            self._leader.commit(self._iteration, partial(self._settle, tables) if drawn else None)
        return links.client.meet(f"committed {number}")

    def _settle(self, tables: Mapping[PartitionKey, Table]) -> None:
        """Draw tables that the iteration changes no more, before they are stored."""
        if self._anchor is not None:
            for key, table in tables.items():
                self._anchor.draw(key, table, self._iteration)

    def _bring(self, grant: Grant) -> dict[PartitionKey, Table]:
        """Return the partitions of a bucket that are not shared.

        Partitions of the bucket before that are valid stay in memory.
        """
        keys = self._partitioned(grant.bucket)
        sources = {key: grant.sources[self._name(key)] for key in keys}
        known = dict(self._held)
        if self._ahead is not None:
            wanted = {key: source.generation for key, source in sources.items()}
            known = self._ahead.take(wanted, self._links.member.check) | known
        held = {
            key: table
            for key, (generation, table) in known.items()
            if key in sources and generation == sources[key].generation
        }
        del known
        self._held = {}  # before others come, partitions that are not needed any more leave memory
        missing = [key for key in keys if key not in held]
        brought = in_parallel(lambda key: self._fetch(key, sources[key]), missing, len(missing))
        tables = held | dict(zip(missing, brought, strict=True))
        self._held = {key: (grant.lease, tables[key]) for key in keys}
        return tables

    def _fetch(self, key: PartitionKey, source: Source) -> Table:
        if source.served and self._links.partitions is not None:
            found = self._links.partitions.get(key)
            if found is None or found.lease != source.generation:
                there = found and found.lease
                raise GenerationError(f"{key}: its server has generation {there}, not {source.generation}")
            return found.table
        if source.stored is not None:
            return self._adopt(self._links.partition_store.get(source.stored))
        if source.generation:
            raise RuntimeError(f"{key}: generation {source.generation} is neither stored nor with a server: a bug")
        return self._adopt(self._start.table(key))

    def _put_away(self, tables: Mapping[PartitionKey, Table], lease: int) -> dict[str, StoredObject]:
        """Give partitions to their servers, or to the store.

        They stay in memory here until the next bucket is known.
        """
        servers = self._links.partitions
        if servers is None:
            return self._links.partition_store.put_all(tables, lease=lease)
        in_parallel(lambda key: servers.put(key, tables[key], lease), tables, len(tables))
        return {}

    def _put_behind(self, tables: Mapping[PartitionKey, Table], lease: int) -> None:
        """Put partitions away behind the training, and report that."""
        self._links.records.put_away(lease, self._put_away(tables, lease))

    def _withdraw(self, error: BaseException) -> None:
        """Report the reason for leaving, and store what can be kept."""
        links = self._links
        links.member.fail(error)
        if self._ahead is not None:  # before the report, after which servers store what they have
            self._ahead.settle(LAST_FLUSH_SECONDS)
        try:
            if links.partitions is not None:
                withdraw(links.client, links.server, self._pending)
                return
            try:
                links.client.leave(self._pending)
            finally:
                if self._leader is not None:  # others store their partitions before they hand in their reports
                    links.client.meet("left", seconds=LAST_FLUSH_SECONDS + FAREWELL_SECONDS)
        finally:
            if self._leader is not None:
                self._leader.wait_shared(SHARED_SECONDS)


def depart(client: CoordinatorClient, *, leader: bool) -> None:
    """Leave after a training; rank 0 last, because it answers the others."""
    with suppress(RankLostError):  # everything is committed
        client.leave(None)
        if leader:
            client.meet("left", seconds=FAREWELL_SECONDS)


def withdraw(client: CoordinatorClient, server: PartitionServer | None, report: Report | None) -> None:
    """Leave a broken gang that has partitions in memory.

    They are stored after each rank has brought its own.
    """
    with ExitStack() as then:  # from the last to the first, each even if those before have failed
        then.callback(client.meet, "stored", seconds=FAREWELL_SECONDS)  # partitions that others store count, too
        if server is not None:
            then.callback(server.flush, LAST_FLUSH_SECONDS)
        then.callback(client.meet, "left", seconds=FAREWELL_SECONDS)
        client.leave(report)


def keep(iteration: Iteration, client: CoordinatorClient, server: PartitionServer) -> bool:
    """Take part in an iteration without training, with partitions in memory.

    Returns:
        Whether early stopping ends the training with it.
    """
    for place in ("begin", "ready"):
        client.meet(f"{place} {iteration.number}")
    client.next(iteration.number, None, give=False)
    server.flush(FLUSH_SECONDS, each=True)
    for place in ("trained", "pulled"):
        client.meet(f"{place} {iteration.number}")
    return client.meet(f"committed {iteration.number}")
