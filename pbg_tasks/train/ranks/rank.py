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
from pbg_tasks.train.background import Background
from pbg_tasks.train.engine import Position
from pbg_tasks.train.partition_files import Stamp
from pbg_tasks.train.partitions import Layout, PartitionKey
from pbg_tasks.train.pieces import PieceTrainer
from pbg_tasks.train.ranks.messages import report_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.checkpoint import Iteration, StoredObject
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.train.anchor import Anchor
    from pbg_tasks.train.course import Course
    from pbg_tasks.train.edge_files import EdgeFiles, Piece
    from pbg_tasks.train.engine import Engine
    from pbg_tasks.train.ranks.desk import Desk
    from pbg_tasks.train.ranks.lead import Lead
    from pbg_tasks.train.ranks.member import Member
    from pbg_tasks.train.ranks.messages import Grant, Report, Source
    from pbg_tasks.train.ranks.parameter_exchange import ParameterExchange
    from pbg_tasks.train.ranks.partition_client import PartitionClient
    from pbg_tasks.train.ranks.partition_server import PartitionServer
    from pbg_tasks.train.ranks.shared import SharedState
    from pbg_tasks.train.ranks.shelf import Shelf
    from pbg_tasks.train.source import StartingPoint
    from pbg_tasks.train.tables import Table

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
        desk: the coordinator.
        member: this rank as the gang sees it.
        shelf: partitions in the store.
        exchange: of shared parameters.
        partitions: servers that have partitions in memory; None: they go through the store.
        server: the one of them that is here.
    """

    desk: Desk
    member: Member
    shelf: Shelf
    exchange: ParameterExchange
    partitions: PartitionClient | None = None
    server: PartitionServer | None = None


class RankTrainer:
    """Trains what the coordinator leases to this rank.

    Args:
        config: PBG's config.
        engine: that computes; its steps go through the gate.
        course: of the training.
        edges: the edges.
        start: where partitions come from that nobody has trained.
        shared: this rank's copy of what all have.
        links: to the others.
        lead: what rank 0 does besides.
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
        course: Course,
        edges: EdgeFiles,
        start: StartingPoint,
        shared: SharedState,
        links: Links,
        lead: Lead | None,
        rank: int,
        seed: int,
        anchor: Anchor | None = None,
    ) -> None:
        self.work = Work()
        self._engine, self._course, self._edges, self._start, self._shared = engine, course, edges, start, shared
        self._links, self._lead, self._rank, self._anchor = links, lead, rank, anchor
        self._pieces = PieceTrainer(config, engine, seed)
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
                for iteration in left:
                    self._iterate(iteration)
            except BaseException as error:
                links.exchange.close()
                with suppress(PbgError):
                    self._withdraw(error)
                raise
            depart(links.desk, lead=self._lead is not None)

    def _iterate(self, iteration: Iteration) -> None:
        links, number = self._links, iteration.number
        links.shelf.stamp = Stamp(number, self._course.info(iteration))
        pieces = self._course.pieces(iteration, scattered=True)
        if self._lead is not None:
            self._shared.load(self._lead.record, links.shelf)
            self._lead.begin(iteration, pieces)  # not before: from then on what all share is stored
            links.exchange.seed()
        links.desk.meet(f"begin {number}")
        links.exchange.pull()
        links.desk.meet(f"ready {number}")
        links.exchange.resume()
        self._train_all(iteration, pieces)
        links.exchange.flush()
        if links.server is not None:
            links.server.flush(FLUSH_SECONDS)
        links.desk.meet(f"trained {number}")
        links.exchange.pull()
        links.desk.meet(f"pulled {number}")
        if self._lead is not None:
            tables = {PartitionKey(name, 0): table for name, table in self._shared.tables.items()}
            drawn = self._anchor is not None and tables
            self._lead.commit(iteration, partial(self._settle, tables, iteration) if drawn else None)
        links.desk.meet(f"committed {number}")

    def _train_all(self, iteration: Iteration, pieces: Sequence[Piece]) -> None:
        by_bucket = {piece.bucket: piece for piece in pieces}
        total = sum(piece.edges for piece in pieces)
        while (grant := self._links.desk.next(iteration.number, self._pending)) is not None:
            self._pending = None
            self._pending = self._train(iteration, by_bucket[grant.bucket], grant, total)
        self._pending = None

    def _train(self, iteration: Iteration, piece: Piece, grant: Grant, total: int) -> Report:
        coming = self._io.submit(self._edges.read, *piece)
        tables = self._bring(grant)
        lhs, rhs = (
            {name: tables[key] if key in tables else self._shared.tables[name] for name, key in side.items()}
            for side in self._layout.sides(piece.bucket)
        )
        edges = self._io.wait(coming)
        place = f"({piece.bucket.lhs}, {piece.bucket.rhs})"
        title = f"epoch {iteration.epoch_idx + 1}/{iteration.num_epochs}, bucket {place}"
        with Progress(title, total=piece.edges) as progress:
            progress.advance(grant.edges)
            result = self._pieces.train(
                iteration,
                piece,
                edges,
                lhs,
                rhs,
                reach=self._course.reach(iteration, grant.seen, piece, total),
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
        progress.advance(count, loss=loss)
        self._links.member.doing = title

    def _bring(self, grant: Grant) -> dict[PartitionKey, Table]:
        """Return the partitions of a bucket, those that are not shared; what is here already stays."""
        version = self._links.shelf.stamp.version
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
        return self._start.table(key) if source.stored is None else self._links.shelf.get(source.stored)

    def _put_away(self, tables: Mapping[PartitionKey, Table], lease: int) -> dict[str, StoredObject]:
        """Give partitions to their servers, or to the store; what is here stays until the next bucket is known."""
        servers = self._links.partitions
        if servers is None:
            return self._links.shelf.put_all(tables, lease=lease)
        in_parallel(lambda key: servers.put(key, tables[key], lease), tables, max(len(tables), 1))
        return {}

    def _withdraw(self, error: BaseException) -> None:
        """Tell the others why this rank goes, and leave behind what can be kept."""
        links = self._links
        links.member.fail(error)
        try:
            if links.partitions is not None:
                withdraw(links.desk, links.server, self._pending)
                return
            try:
                links.desk.leave(self._pending)
            finally:
                if self._lead is not None:  # others store their partitions before they hand in what they trained
                    links.desk.meet("left", seconds=LAST_FLUSH_SECONDS + FAREWELL_SECONDS)
        finally:
            if self._lead is not None:
                self._lead.wait_shared(SHARED_SECONDS)


def depart(desk: Desk, *, lead: bool) -> None:
    """Leave at the end of a training: rank 0 last, because it answers the others."""
    with suppress(RankLostError):  # everything is committed
        desk.leave(None)
        if lead:
            desk.meet("left", seconds=FAREWELL_SECONDS)


def withdraw(desk: Desk, server: PartitionServer | None, report: Report | None) -> None:
    """Leave a broken gang that has partitions in memory: they are stored once everyone has brought what it had."""
    with ExitStack() as then:  # from the last to the first, each whatever has become of those before
        then.callback(desk.meet, "stored", seconds=FAREWELL_SECONDS)  # what others store counts, too
        if server is not None:
            then.callback(server.flush, LAST_FLUSH_SECONDS)
        then.callback(desk.meet, "left", seconds=FAREWELL_SECONDS)
        desk.leave(report)


def keep(iteration: Iteration, desk: Desk, server: PartitionServer) -> None:
    """Go through an iteration as one that trains nothing, but has partitions in memory."""
    for place in ("begin", "ready"):
        desk.meet(f"{place} {iteration.number}")
    desk.next(iteration.number, None, give=False)
    server.flush(FLUSH_SECONDS)
    for place in ("trained", "pulled", "committed"):
        desk.meet(f"{place} {iteration.number}")
