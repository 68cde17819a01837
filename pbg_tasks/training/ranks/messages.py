"""Messages between trainers and the coordinator, each one JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from pbg_tasks.checkpoint import EdgeChunkRecord, StoredObject
from pbg_tasks.config.base import Frozen
from pbg_tasks.training.edge_chunk_records import edge_chunk_record
from pbg_tasks.training.schedule import Bucket

if TYPE_CHECKING:
    from pbg_tasks.training.edge_chunks import EdgeChunkResult


class Source(Frozen):
    """Location of a partition.

    Where no attribute is set, the partition is as before the gang began.

    Attributes:
        generation: number of the lease that trained it last.
        served: whether its server has it in memory.
        stored: its stored object, where it is not served.
    """

    generation: int = 0
    served: bool = False
    stored: StoredObject | None = None


class Grant(Frozen):
    """A bucket to train.

    Attributes:
        lease: number of the lease.
        lhs: partition of the left-hand side.
        rhs: partition of the right-hand side.
        seen: number of edges of the iteration that any rank trained before.
        batches: number of batches of the bucket that were trained before, with ``edges`` edges.
        drawn: state of the generator after them, where it is known.
        sources: locations of its partitions, by PBG's file name.
        last: those of these names whose partitions no later bucket of the iteration needs.
    """

    lease: int
    lhs: int
    rhs: int
    seen: int
    batches: int = 0
    edges: int = 0
    drawn: str = ""
    sources: dict[str, Source]
    last: frozenset[str] = frozenset()

    @property
    def bucket(self) -> Bucket:
        """Bucket that is trained."""
        return Bucket(self.lhs, self.rhs)


class Reservation(Frozen):
    """Bucket that a rank trains next.

    Another rank may get its partitions before.

    Attributes:
        lhs: partition of the left-hand side.
        rhs: partition of the right-hand side.
        sources: locations of its partitions that the rank's present bucket does not need, by PBG's file name.
    """

    lhs: int
    rhs: int
    sources: dict[str, Source]

    @property
    def bucket(self) -> Bucket:
        """Bucket that is reserved."""
        return Bucket(self.lhs, self.rhs)


class Report(Frozen):
    """Report on a leased bucket.

    Attributes:
        edge_chunk: record of the training under this lease.
        stopped: whether the training stopped before the bucket's end.
        objects: stored partitions of the bucket, by PBG's file name, where the rank has stored them itself.
        underway: whether its partitions are still on their way to their servers or the store. The rank reports later
            that they are put away; until then they stay locked, and the bucket is not durable.
    """

    edge_chunk: EdgeChunkRecord
    stopped: bool = False
    objects: dict[str, StoredObject] = Field(default_factory=dict)
    underway: bool = False


def report_of(grant: Grant, rank: int, result: EdgeChunkResult, objects: dict[str, StoredObject] | None) -> Report:
    """Return the report on an edge chunk.

    Without objects, its partitions are on their way.
    """
    edge_chunk = edge_chunk_record(grant.bucket, result, rank=rank, lease=grant.lease)
    underway = objects is None
    return Report(edge_chunk=edge_chunk, stopped=result.stopped is not None, objects=objects or {}, underway=underway)
