"""Rank 0's service to the gang: leases and records of buckets.

It is PBG's lock server, and the one writer of the checkpoint directory: every report on a bucket becomes a progress
record before its rank continues. Each rank's requests come in a thread of their own; one lock guards the state, another
lets one thread at a time write a record, which then covers all threads that waited. The shared state may take minutes
to store: a record names the last objects of it, and no rank waits for the next.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pbg_tasks.checkpoint import StoredObject
from pbg_tasks.config.base import parse
from pbg_tasks.errors import ConflictError, PbgError, RankLostError
from pbg_tasks.progress import say
from pbg_tasks.training.ranks.iteration_state import IterationState
from pbg_tasks.training.ranks.messages import Grant, Report, Source
from pbg_tasks.training.ranks.shared_stores import SharedStores
from pbg_tasks.training.ranks.transport.connection import error_fields
from pbg_tasks.training.ranks.transport.frames import ERROR

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pbg_tasks.checkpoint import CheckpointWriter, Iteration, ObjectRecord, PartialRecord
    from pbg_tasks.config import ModelConfig
    from pbg_tasks.training.data.edge_files import EdgeChunk
    from pbg_tasks.training.data.partitions import PartitionKey
    from pbg_tasks.training.ranks.transport.wire import Connection

POLL_SECONDS = 1.0
"""Time that a question waits for its answer before the rank asks again."""

Answer = tuple[str, dict[str, Any]]


class Coordinator:
    """Leases of buckets, and records of what is stored.

    Args:
        config: of the model.
        counts: entities of every partition.
        writer: the claimed checkpoint directory.
        members: ranks that meet at the end of an iteration, partition servers included.
        share: stores the shared state, called with a number that rises, and returns the objects by PBG's file name.
        share_every: least seconds between two stores of it; its training in between can be lost. 0: each record stores
            it first.
        cold: whether all vectors start at random.

    Attributes:
        over: whether early stopping has ended the training.
    """

    def __init__(
        self,
        config: ModelConfig,
        counts: Mapping[PartitionKey, int],
        writer: CheckpointWriter,
        *,
        members: int,
        share: Callable[[int], dict[str, StoredObject]],
        share_every: float,
        cold: bool,
    ) -> None:
        self._config, self._counts = config, counts
        self._writer = writer
        self._cold, self.over = cold, False
        self._places: dict[PartitionKey, Source] = {}
        self._state: IterationState | None = None
        self._changed = threading.Condition()
        self._members, self._gone = members, set[int]()
        self._met: dict[str, set[int]] = {}
        self._stopping = False
        self._recording = threading.Lock()
        self._changes = self._recorded = 0
        self._records = 0
        self._shared: dict[str, StoredObject] = {}
        self._settled = True  # between two iterations, when no record stores the shared state
        self._stores = SharedStores(share, self._take_shared, every=share_every)

    def begin(self, iteration: Iteration, edge_chunks: Sequence[EdgeChunk], order: str) -> None:
        """Begin an iteration, or continue one with a record.

        From now on the shared state is stored for the next gang, so it has to be here as in that record.

        Args:
            iteration: the next one.
            edge_chunks: of it, the preferred ones first.
            order: hash of the keys that decide the order of edges within an edge chunk.

        Raises:
            ConfigError: the record is of an iteration with other edges.
        """
        earlier = self._writer.progress
        with self._changed:
            leases = max(self._state.leases if self._state else 0, earlier.lease if earlier else 0)
            self._state = IterationState(
                self._config,
                self._counts,
                iteration,
                edge_chunks,
                self._places,
                first_lease=leases + 1,
                tree=self._cold and iteration.number == 1 and self._config.distributed_tree_init_order,
                order=order,
                earlier=earlier,
            )
            # Until it is stored again, the next gang begins with that of the record, or else of the version.
            self._shared = dict(earlier.shared) if earlier else {}
            self._settled = False
            self._stores.begin()
            self._changed.notify_all()

    @property
    def state(self) -> IterationState:
        """The iteration under way."""
        if self._state is None:
            raise RuntimeError("no iteration has begun: a bug")
        return self._state

    def serve(self, connection: Connection) -> None:
        """Answer a rank until it leaves."""
        try:
            self.answer_all(connection)
        finally:
            self.depart(connection.peer.rank)  # the membership decides whether it was allowed to

    def depart(self, rank: int) -> None:
        """Record that a rank asks nothing more."""
        with self._changed:
            self._gone.add(rank)
            self._changed.notify_all()

    def answer_all(self, connection: Connection) -> None:
        """Answer the questions or reports of a rank until it leaves."""
        with suppress(RankLostError):
            while True:
                message = connection.receive(timeout=None)
                try:
                    kind, fields = self.answer(connection.peer.rank, message.kind, message.fields)
                except (ConflictError, RankLostError):
                    raise
                except PbgError as error:  # the rank has yet to leave, with its report
                    kind, fields = ERROR, error_fields(error)
                connection.send(kind, **fields)

    def answer(self, rank: int, kind: str, fields: Mapping[str, Any]) -> Answer:
        """Answer one question.

        Raises:
            ConflictError: the rank is not in step with the gang, or another gang has claimed the directory.
        """
        if kind == "next":
            return self._next(rank, fields)
        if kind == "meet":
            met = self._meet(rank, str(fields["place"]), left=bool(fields["left"]))
            return ("go" if met else "wait"), {"over": self.over}
        if kind == "leave":
            self._stop(rank, fields)
            return "ok", {}
        if kind == "reserve":
            return self._reserve(rank, fields)
        if kind == "put away":
            self._put_away(rank, int(fields["lease"]), fields["objects"])
            return "ok", {}
        if kind == "stored":
            self._store(str(fields["name"]), fields["object"])
            return "ok", {}
        raise ConflictError(f"rank {rank} asks {kind!r}, which no version of this package does")

    def _next(self, rank: int, fields: Mapping[str, Any]) -> Answer:
        """Take a report and grant the next bucket, recorded before it begins.

        Where the shared state cannot be stored, the rank gets no bucket and leaves; its report counts.
        """
        number = int(fields["iteration"])
        grant: Grant | None = None
        with self._changed:
            self._check_step(rank, number)
            self._take(rank, fields.get("report"))
            give = fields.get("give", True) and not self._stopping and not self._stores.failed
            grant = self.state.grant(rank) if give else None
            if grant is not None:
                self._change()
            elif fields.get("report") is None and not self.state.trained:
                self._changed.wait(POLL_SECONDS)
        self._record()
        if grant is not None:
            return "lease", grant.model_dump(mode="json")
        self._stores.check()
        with self._changed:
            return ("over" if self.state.trained else "wait"), {}

    def _check_step(self, rank: int, number: int) -> None:
        if number != self.state.iteration.number:
            raise ConflictError(f"rank {rank} is at iteration {number}, the gang at {self.state.iteration.number}")

    def _take(self, rank: int, report: Mapping[str, Any] | None) -> None:
        if report is not None:
            self.state.report(rank, parse(Report, dict(report), source=f"the report of rank {rank}"))
            self._change()

    def _stop(self, rank: int, fields: Mapping[str, Any]) -> None:
        """Take a rank's last report.

        From now on no rank gets a bucket, and the shared state is stored once more.
        """
        with self._changed:
            if not self._stopping and not self._settled:
                self._change()
                self._stores.insist()
            self._stopping = True
            self._met.setdefault("left", set()).add(rank)
            self._take(rank, fields.get("report"))
        self._record()

    def _reserve(self, rank: int, fields: Mapping[str, Any]) -> Answer:
        """Reserve a rank's next bucket, without a wait and without a record."""
        with self._changed:
            self._check_step(rank, int(fields["iteration"]))
            give = not self._stopping and not self._stores.failed
            reservation = self.state.reserve(rank) if give else None
        return ("none", {}) if reservation is None else ("reserved", reservation.model_dump(mode="json"))

    def _put_away(self, rank: int, lease: int, objects: Mapping[str, Any]) -> None:
        parsed = {name: parse(StoredObject, dict(each), source=name) for name, each in objects.items()}
        with self._changed:
            self.state.put_away(rank, lease, parsed)
            if parsed:
                self._change()
            else:  # a record does not list partitions in memory
                self._changed.notify_all()
        self._record()

    def _store(self, name: str, stored: Mapping[str, Any]) -> None:
        with self._changed:
            self.state.store(name, parse(StoredObject, dict(stored), source=name))
            self._change()
        self._record()

    def _change(self) -> None:
        self._changes += 1
        self._changed.notify_all()

    def _meet(self, rank: int, place: str, *, left: bool) -> bool:
        """Return, after a short wait, whether all have come to a place.

        Args:
            rank: has come.
            place: its name.
            left: count ranks that have left as well.
        """
        with self._changed:
            met = self._met.setdefault(place, set())
            met.add(rank)
            self._changed.notify_all()
            gone = self._gone if left else set[int]()
            return self._changed.wait_for(lambda: len(met | gone) >= self._members, POLL_SECONDS)

    def _record(self) -> None:
        """Return once the state as it is now is recorded."""
        with self._changed:
            wanted = self._changes
        with self._recording:
            if self._recorded < wanted:
                if self._stores.every:
                    self._stores.ask()
                elif not self._settled:
                    self._shared = self._stores.now()
                self._write()

    def _take_shared(self, stored: dict[str, StoredObject]) -> None:
        """Record the objects of the shared state."""
        with self._changed:
            self._shared = stored
            self._change()
        self._record()

    def wait_shared(self, seconds: float) -> None:
        """Wait so many seconds for the shared state to be stored."""
        if not self._stores.wait(seconds):
            say(f"the shared parameters are not stored after {seconds:g} s: the next gang begins with older ones")

    def _write(self) -> PartialRecord:
        self._records += 1
        with self._changed:
            changes, progress = self._changes, self._progress()
        self._writer.record(progress)
        self._recorded = changes
        return progress

    def _progress(self) -> PartialRecord:
        epoch = self._writer.partial.writer_epoch
        return self.state.progress(self._records, spec=self._writer.spec, writer_epoch=epoch, shared=self._shared)

    def settle(self, draw: Callable[[], None] | None = None) -> dict[str, ObjectRecord]:
        """Make the objects of a version from the iteration's stored objects.

        Args:
            draw: changes the shared state for the version. A record never has the changed state: after a crash before
                the commit it is drawn again, from the state before.

        Returns:
            The records of the objects by name.

        Raises:
            ConflictError: another gang has claimed the directory.
        """
        progress = self._record_last()
        with self._changed:
            left = self.state.unstored()
        if left or not self.state.trained:
            raise RuntimeError(f"an iteration ended with {left} not stored: a bug")
        if draw is not None:
            draw()
            progress = progress.model_copy(update={"shared": self._stores.now()})
        with self._recording:
            records = self._writer.settle(progress)
            with self._changed:
                self._move(progress)
            return records

    def _record_last(self) -> PartialRecord:
        """Store and record the shared state for the iteration's last time."""
        try:
            shared = self._stores.now()  # not while records wait: among them may be one with the state before
            with self._recording:
                with self._changed:
                    self._shared, self._settled = shared, True
                return self._write()
        except BaseException:
            with self._changed:  # so that it is tried again when the first rank leaves, or now where one has left
                self._settled = False
                self._stores.begin()
                if self._stopping:
                    self._change()
                    self._stores.insist()
            raise

    def _move(self, progress: PartialRecord) -> None:
        """Give stored partitions the names of the version."""
        names = {stored.name: name for name, stored in progress.partitions.items()}
        for key, place in self._places.items():
            if place.stored is not None and place.stored.name in names:
                stored = place.stored.model_copy(update={"name": names[place.stored.name]})
                self._places[key] = place.model_copy(update={"stored": stored})
