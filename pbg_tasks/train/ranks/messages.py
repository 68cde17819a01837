"""What trainers and the coordinator say to each other about buckets, each as one JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from pbg_tasks.checkpoint import EdgeChunkRecord, StoredObject
from pbg_tasks.config.base import Frozen
from pbg_tasks.train.edge_chunk_records import edge_chunk_record
from pbg_tasks.train.schedule import Bucket

if TYPE_CHECKING:
    from pbg_tasks.train.edge_chunks import EdgeChunkResult


class Source(Frozen):
    """Where a partition is; with nothing set it is as it was before the gang began.

    Attributes:
        generation: number of the lease that trained it last.
        served: whether its server has it in memory.
        stored: where it is stored, where it is not served.
    """

    generation: int = 0
    served: bool = False
    stored: StoredObject | None = None


class Grant(Frozen):
    """A bucket to train.

    Attributes:
        lease: its number.
        lhs: partition.
        rhs: partition.
        seen: edges of the iteration trained by anyone before.
        batches: of the bucket trained before, with ``edges`` edges.
        drawn: state of the generator after them, where it is known.
        sources: where its partitions are, by PBG's file name.
        last: of these names, those of partitions that no bucket of the iteration needs after this one.
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
        """What is trained."""
        return Bucket(self.lhs, self.rhs)


class Report(Frozen):
    """What became of a bucket.

    Attributes:
        edge_chunk: what was trained under this lease.
        stopped: whether that was not its end.
        objects: its partitions, by PBG's file name, where the rank has stored them itself.
    """

    edge_chunk: EdgeChunkRecord
    stopped: bool = False
    objects: dict[str, StoredObject] = Field(default_factory=dict)


def report_of(grant: Grant, rank: int, result: EdgeChunkResult, objects: dict[str, StoredObject]) -> Report:
    """Return the report on an edge chunk."""
    edge_chunk = edge_chunk_record(grant.bucket, result, rank=rank, lease=grant.lease)
    return Report(edge_chunk=edge_chunk, stopped=result.stopped is not None, objects=objects)
