"""State of one iteration in the coordinator.

It has the lease of each rank, and the work that would survive a crash. A partition's generation is the number of the
lease that trained it last. An edge chunk is durable once every partition that it trained is stored in its generation or
a later one. Only then does a record list it as done. An edge chunk that is trained and not durable counts as under way,
so that the next gang trains it again and counts its edges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import EdgeChunkRecord, LeaseRecord, PartialRecord
from pbg_tasks.errors import ConfigError, ConflictError
from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.training.data.partitions import Layout
from pbg_tasks.training.edge_chunk_records import continued
from pbg_tasks.training.engine.held_out import held_out_count
from pbg_tasks.training.ranks.leases import LeaseBook
from pbg_tasks.training.ranks.messages import Grant, Reservation, Source
from pbg_tasks.training.schedule import Bucket

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from pbg_tasks.checkpoint import Iteration, StoredObject
    from pbg_tasks.config import ModelConfig
    from pbg_tasks.training.data.edge_files import EdgeChunk
    from pbg_tasks.training.data.partitions import PartitionKey
    from pbg_tasks.training.ranks.messages import Report


class IterationState:
    """State of the present iteration.

    Args:
        config: of the model.
        counts: number of entities of every partition.
        iteration: the present iteration.
        edge_chunks: edge chunks that it trains, the preferred ones first.
        places: sources of the partitions that the gang has trained or found stored; updated in place.
        first_lease: number of the first lease.
        tree: whether PBG's rule of the initialisation tree applies.
        order: hash of everything that determines the order in which an edge chunk's edges are trained.
        earlier: the record of another gang on the iteration.

    Attributes:
        iteration: the present iteration.
        earlier: edge chunks, or parts of them, that an earlier gang trained and this one goes on after.
        retrained: number of edges that an earlier gang trained, or may have trained, and lost.

    Raises:
        ConfigError: ``earlier`` belongs to an iteration with other edges.
    """

    def __init__(
        self,
        config: ModelConfig,
        counts: Mapping[PartitionKey, int],
        iteration: Iteration,
        edge_chunks: Sequence[EdgeChunk],
        places: MutableMapping[PartitionKey, Source],
        *,
        first_lease: int,
        tree: bool,
        order: str,
        earlier: PartialRecord | None = None,
    ) -> None:
        self.iteration, self._order = iteration, order
        self._eval_fraction, self._layout = config.eval_fraction, Layout(config)
        self._edge_chunks = {edge_chunk.bucket: edge_chunk for edge_chunk in edge_chunks}
        self._places = places
        self._lease = first_lease - 1
        self._stored: dict[PartitionKey, StoredObject] = {}
        self._keys = {
            embeddings_file_name(*key, iteration.number): key
            for key in counts
            if config.entities[key.entity].num_partitions > 1
        }
        self._done: dict[Bucket, EdgeChunkRecord] = {}
        self._durable: list[EdgeChunkRecord] = []  # those done whose partitions are stored
        self._fresh: dict[int, EdgeChunkRecord] = {}  # the other done ones, by lease
        self._begun: dict[Bucket, EdgeChunkRecord] = {}
        self._last: dict[int, Bucket] = {}
        self._reported: dict[int, int] = {}  # the last reported lease of each rank
        self._needs: dict[int, frozenset[PartitionKey]] = {}  # partitions of each lease
        self._underway: dict[int, int] = {}  # rank of each reported lease whose partitions are not put away
        self._early: dict[int, dict[str, StoredObject]] = {}  # objects of leases put away before their report came
        self.earlier: tuple[EdgeChunkRecord, ...] = ()
        self.retrained = 0
        if earlier is not None:
            self._resume(earlier)
        self._book = LeaseBook(
            config,
            counts,
            [edge_chunk.bucket for edge_chunk in edge_chunks],
            done=self._done,
            trained=self._stored,
            tree=tree,
            first_number=first_lease,
        )

    def _resume(self, earlier: PartialRecord) -> None:
        self._check_same_edges(earlier)
        self._done = {Bucket(edge_chunk.lhs, edge_chunk.rhs): edge_chunk for edge_chunk in earlier.done}
        self._durable = list(earlier.done)
        begun = {Bucket(edge_chunk.lhs, edge_chunk.rhs): edge_chunk for edge_chunk in earlier.begun}
        self._last = {rank: Bucket(lhs, rhs) for rank, lhs, rhs in earlier.last}
        for name, stored in earlier.partitions.items():
            self._stored[self._keys[name]] = stored
            self._places[self._keys[name]] = Source(generation=stored.lease, stored=stored)
        lost = [Bucket(lease.lhs, lease.rhs) for lease in earlier.active]
        rest = sum(self._trainable(bucket) - (begun[bucket].edges if bucket in begun else 0) for bucket in lost)
        self.retrained = earlier.retrained + rest
        if earlier.order == self._order:
            self._begun = begun
        else:  # in another order, the next batches are not the untrained ones
            self.retrained += sum(edge_chunk.edges for edge_chunk in begun.values())
        self.earlier = (*earlier.done, *self._begun.values())

    def _check_same_edges(self, earlier: PartialRecord) -> None:
        other = [
            edge_chunk
            for edge_chunk in earlier.done
            if edge_chunk.edges + edge_chunk.held_out != self._edge_chunks[Bucket(edge_chunk.lhs, edge_chunk.rhs)].edges
        ]
        if not self.iteration.is_same(earlier.iteration) or other:
            where = f", bucket ({other[0].lhs}, {other[0].rhs}) among them" if other else ""
            raise ConfigError(
                f"iteration {self.iteration.number} is partly trained and stored, on other edges than there are now"
                f"{where}; go on with the edges, edge_paths and num_edge_chunks it was begun with, or choose another "
                "checkpoint_path"
            )

    def _trainable(self, bucket: Bucket) -> int:
        """Return the number of a bucket's edges that are not held out."""
        edges = self._edge_chunks[bucket].edges
        return edges - held_out_count(edges, self._eval_fraction)

    @property
    def trained(self) -> bool:
        """Whether every edge chunk is trained to its end."""
        return self._book.finished

    @property
    def edges(self) -> int:
        """Number of edges of the iteration."""
        return sum(edge_chunk.edges for edge_chunk in self._edge_chunks.values())

    @property
    def seen(self) -> int:
        """Number of edges that are trained or held out."""
        return sum(
            edge_chunk.edges + edge_chunk.held_out for edge_chunk in (*self._done.values(), *self._begun.values())
        )

    @property
    def done(self) -> list[EdgeChunkRecord]:
        """Edge chunks trained to their end, in the order of their leases."""
        return sorted(self._done.values(), key=lambda edge_chunk: edge_chunk.lease)

    @property
    def leases(self) -> int:
        """Highest number of a lease."""
        return self._lease

    @property
    def active(self) -> set[int]:
        """Ranks that have a lease."""
        return set(self._book.active)

    def grant(self, rank: int) -> Grant | None:
        """Lease a bucket to a rank; None when none is free."""
        lease = self._book.acquire(rank, self._last.get(rank))
        if lease is None:
            return None
        self._lease = lease.number
        self._needs[lease.number] = lease.keys
        begun = self._begun.get(lease.bucket)
        names = {key: name for name, key in self._keys.items() if key in lease.keys}
        return Grant(
            lease=lease.number,
            lhs=lease.bucket.lhs,
            rhs=lease.bucket.rhs,
            seen=self.seen - (begun.edges if begun else 0),
            batches=begun.batches if begun else 0,
            edges=begun.edges if begun else 0,
            drawn=begun.drawn if begun else "",
            sources={name: self._places.get(key, Source()) for key, name in names.items()},
            last=frozenset(names[key] for key in lease.last),
        )

    def reserve(self, rank: int) -> Reservation | None:
        """Reserve a rank's next bucket; None when none is free.

        A record has no reservation, because nothing is trained under one.

        Raises:
            ConflictError: the rank has no lease.
        """
        lease = self._book.active.get(rank)
        if lease is None:
            raise ConflictError(f"rank {rank} reserves a bucket, but trains none")
        bucket = self._book.reserve(rank)
        if bucket is None:
            return None
        coming = self._layout.needs(bucket) - lease.keys
        sources = {name: self._places.get(key, Source()) for name, key in self._keys.items() if key in coming}
        return Reservation(lhs=bucket.lhs, rhs=bucket.rhs, sources=sources)

    def report(self, rank: int, report: Report) -> None:
        """Record a rank's report on its lease.

        A rank that interrupted the request with which it sent a report sends the report again. The second report
        changes nothing, even if the rank has a new lease, whose grant it never received.

        Raises:
            ConflictError: the rank does not have this lease.
        """
        lease, edge_chunk = self._book.active.get(rank), report.edge_chunk
        if self._reported.get(rank) == edge_chunk.lease:
            return
        if lease is None or (lease.number, *lease.bucket) != (edge_chunk.lease, edge_chunk.lhs, edge_chunk.rhs):
            raise ConflictError(f"rank {rank} reports on lease {edge_chunk.lease}, which it does not have")
        begun = self._begun.pop(lease.bucket, None)
        if begun is not None:
            edge_chunk = continued(begun, edge_chunk)
        self._last[rank], self._reported[rank] = lease.bucket, lease.number
        early = self._early.pop(lease.number, None)
        underway = report.underway and early is None
        self._locate(lease.number, report.objects if early is None else early, underway=underway)
        if report.stopped:
            self._book.give_back(rank)
            self._begun[lease.bucket] = edge_chunk
        else:
            self._book.release(rank, underway=underway)
            if underway:
                self._underway[lease.number] = rank
            self._done[lease.bucket] = self._fresh[edge_chunk.lease] = edge_chunk

    def put_away(self, rank: int, number: int, objects: dict[str, StoredObject]) -> None:
        """Unlock the partitions of a reported lease.

        All of them are stored, or with their servers.

        Where the report has yet to come, it does so then.

        Args:
            rank: that trained them.
            number: of its lease.
            objects: stored partitions, by PBG's file name, where the rank has stored them itself.

        Raises:
            ConflictError: the rank has no such lease.
        """
        lease = self._book.active.get(rank)
        if lease is not None and lease.number == number:
            self._early[number] = objects
        elif self._underway.get(number) == rank:
            del self._underway[number]
            self._locate(number, objects, underway=False)
            self._book.put_away(number)
        else:
            raise ConflictError(f"rank {rank} puts away lease {number}, which it does not have")

    def _locate(self, number: int, objects: Mapping[str, StoredObject], *, underway: bool) -> None:
        """Note the places of a lease's partitions.

        While they are on their way, the rank alone has them, and no other may lease them.
        """
        for key in self._needs[number]:
            self._places[key] = Source(generation=number, served=not (objects or underway))
        for name, stored in objects.items():
            self.store(name, stored)

    def store(self, name: str, stored: StoredObject) -> None:
        """Record that a partition is stored.

        Raises:
            ConflictError: the partition does not belong to the iteration, or is older than the stored one.
        """
        key = self._keys.get(name)
        if key is None or (key in self._stored and self._stored[key].lease > stored.lease):
            raise ConflictError(f"{stored.name}: is not the newest of iteration {self.iteration.number}")
        self._stored[key] = stored
        place = self._places.get(key)
        if place is None or not place.served:
            self._places[key] = Source(generation=stored.lease, stored=stored)

    def unstored(self) -> list[PartitionKey]:
        """List the partitions whose last training is not stored."""
        return [key for key, place in self._places.items() if place.generation > self._generation(key)]

    def progress(self, number: int, *, spec: str, writer_epoch: int, shared: dict[str, StoredObject]) -> PartialRecord:
        """Return record ``number``: the work that would survive a crash now."""
        for edge_chunk in [edge_chunk for edge_chunk in self._fresh.values() if self._is_durable(edge_chunk)]:
            self._durable.append(edge_chunk)
            del self._fresh[edge_chunk.lease]
        begun = [edge_chunk for edge_chunk in self._begun.values() if self._is_durable(edge_chunk)]
        lost = [
            LeaseRecord(lhs=edge_chunk.lhs, rhs=edge_chunk.rhs, rank=edge_chunk.rank, lease=edge_chunk.lease)
            for edge_chunk in (*self._fresh.values(), *self._begun.values())
            if not self._is_durable(edge_chunk)
        ]
        under_way = [
            LeaseRecord(lhs=lease.bucket.lhs, rhs=lease.bucket.rhs, rank=rank, lease=lease.number)
            for rank, lease in sorted(self._book.active.items())
        ]
        return PartialRecord(
            spec=spec,
            writer_epoch=writer_epoch,
            number=number,
            iteration=self.iteration,
            lease=self._lease,
            done=tuple(self._durable),
            begun=tuple(begun),
            active=(*lost, *under_way),
            partitions={name: self._stored[key] for name, key in self._keys.items() if key in self._stored},
            shared=shared,
            retrained=self.retrained,
            order=self._order,
            last=tuple((rank, *bucket) for rank, bucket in sorted(self._last.items())),
        )

    def _is_durable(self, edge_chunk: EdgeChunkRecord) -> bool:
        # Partitions of edge chunks from an earlier gang's record were stored when that record was made.
        return all(self._generation(key) >= edge_chunk.lease for key in self._needs.get(edge_chunk.lease, ()))

    def _generation(self, key: PartitionKey) -> int:
        stored = self._stored.get(key)
        return stored.lease if stored else 0
