"""Stored part of an iteration that one process trains alone.

Such a process stores its progress only at SIGTERM: then the trained part of the iteration becomes a record
(``checkpoint.partial_record``), like those that a gang stores all the time. The next start continues after the last
batch, in the order that it would have had anyway. So nothing is lost, and with one worker all bits are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import PartialRecord, StoredObject
from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.formats.model import model_file_name, read_model
from pbg_tasks.storage import FinalFile
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.training.data.partitions import Layout
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.schedule import Bucket

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointWriter, EdgeChunkRecord, Iteration, ObjectRecord
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.formats.model import ModelState
    from pbg_tasks.training.data.edge_files import EdgeChunk
    from pbg_tasks.training.data.partitions import PartitionKey
    from pbg_tasks.training.starting_point import StartingPoint

_AT_ONCE = 4  # files that are stored side by side


def continues(progress: PartialRecord, edge_chunks: Sequence[EdgeChunk], order: str) -> bool:
    """Return whether the rest of an iteration can follow a record.

    It can where the record has the first edge chunks of the iteration, in this order.

    Args:
        progress: the record.
        edge_chunks: of the iteration, in the order of one process.
        order: hash of the keys that decide the order of edges within an edge chunk.
    """
    begun = len(progress.begun)
    if progress.active or progress.order != order or begun > 1 or len(progress.done) + begun > len(edge_chunks):
        return False
    return all(
        (record.lhs, record.rhs) == edge_chunk.bucket
        and (stopped or record.edges + record.held_out == edge_chunk.edges)
        for record, edge_chunk, stopped in zip(
            (*progress.done, *progress.begun), edge_chunks, [False] * len(progress.done) + [True] * begun, strict=False
        )
    )


class Remnant:
    """Stored part of the iteration under way, and source of its partitions.

    Args:
        config: of the model.
        writer: the claimed checkpoint directory.
        start: gives partitions that the iteration has not changed.
        scratch: local directory for downloads.

    Attributes:
        done: edge chunks trained to their end, the first of the iteration.
        begun: the one after them, where it was stopped before its end.
        final: objects of the version to come, by name, that no edge chunk changes any more.
        keys: of the partitions in these objects.
        retrained: edges of the iteration that were trained more than once.
    """

    def __init__(self, config: ConfigSchema, writer: CheckpointWriter, start: StartingPoint, scratch: Path) -> None:
        self.done: tuple[EdgeChunkRecord, ...] = ()
        self.begun: EdgeChunkRecord | None = None
        self.final: dict[str, ObjectRecord] = {}
        self.keys: set[PartitionKey] = set()
        self.retrained = 0
        self._config, self._writer = config, writer
        self._start, self._scratch = start, scratch
        self._layout = Layout(config)
        self._stored: dict[PartitionKey, StoredObject] = {}

    def resume(self, iteration: Iteration, edge_chunks: Sequence[EdgeChunk]) -> ModelState | None:
        """Take over the next iteration's stored part, and return its parameters.

        Args:
            iteration: the next one.
            edge_chunks: of it, in order; ``continues`` holds for them.

        Returns:
            None where nothing is stored.

        Raises:
            FormatError: a stored object is damaged.
        """
        progress = self._writer.progress
        if progress is None:
            return None
        self.done, self.begun = progress.done, next(iter(progress.begun), None)
        self.retrained = progress.retrained
        needed = self.changed_by(edge_chunk.bucket for edge_chunk in edge_chunks[len(self.done) :])
        changed = self.changed_by(edge_chunk.bucket for edge_chunk in edge_chunks)
        names = {embeddings_file_name(*key, iteration.number): key for key in changed}
        self._stored = {key: progress.objects[name] for name, key in names.items() if name in progress.objects}
        self.keys = self._stored.keys() - needed
        ready = {name: progress.objects[name] for name, key in names.items() if key in self.keys}
        self.final = self._writer.settle(progress.model_copy(update={"partitions": ready, "shared": {}}))
        for name, record in self.final.items():  # the record's own objects go once the version is committed
            self._stored[names[name]] = StoredObject(name=name, record=record)
        model = progress.shared.get(model_file_name(iteration.number))
        return None if model is None else self._fetch_model(model)

    @property
    def earlier(self) -> tuple[EdgeChunkRecord, ...]:
        """Edge chunks, and the part of one, that are stored."""
        return self.done if self.begun is None else (*self.done, self.begun)

    def table(self, key: PartitionKey) -> Table:
        """Return a partition as stored, or as it was before the iteration."""
        stored = self._stored.get(key)
        if stored is None:
            return self._start.table(key)
        path = self._writer.partial.fetch(stored, self._scratch / "taken")
        try:
            return Table.read(path, self._config)
        finally:
            path.unlink()

    def changed_by(self, buckets: Iterable[Bucket]) -> set[PartitionKey]:
        """Return the partitions that buckets change."""
        return {key for bucket in buckets for key in self._layout.needs(bucket)}

    def store(
        self,
        iteration: Iteration,
        order: str,
        *,
        done: Sequence[EdgeChunkRecord],
        begun: EdgeChunkRecord | None,
        files: Mapping[PartitionKey, Path],
        model: Path,
    ) -> None:
        """Store the trained part of an iteration; one record makes it count.

        Args:
            iteration: under way.
            order: hash of the keys that decide the order of edges within an edge chunk.
            done: edge chunks trained to their end by this process, in order; they get their leases here.
            begun: the part of the next one that is trained in all.
            files: the partitions that these edge chunks have changed.
            model: file of the parameters.

        Raises:
            ConflictError: another writer has claimed the run since; nothing of this counts.
            StorageError: the store failed.
        """
        earlier, writer = self._writer.progress, self._writer
        lease = earlier.lease if earlier is not None else 0
        done = [
            edge_chunk.model_copy(update={"lease": number}) for number, edge_chunk in enumerate(done, start=lease + 1)
        ]
        lease += len(done)
        if begun is not None:
            lease += 1
            begun = begun.model_copy(update={"lease": lease})
        last = {
            key: edge_chunk.lease
            for edge_chunk in (*done, *([begun] if begun else []))
            for key in self._layout.needs(Bucket(edge_chunk.lhs, edge_chunk.rhs))
        }

        def put(key: PartitionKey) -> StoredObject:
            return writer.partial.put(FinalFile(files[key]), f"{last[key]}.0", lease=last[key])

        stored = dict(zip(files, in_parallel(put, files, _AT_ONCE), strict=True))
        partitions = dict(earlier.partitions) if earlier is not None else {}
        shared = {model.name: writer.partial.put(FinalFile(model), f"{lease}.0")}
        for key, each in stored.items():
            single = self._config.entities[key.entity].num_partitions == 1
            (shared if single else partitions)[embeddings_file_name(*key, iteration.number)] = each
        writer.record(
            PartialRecord(
                spec=writer.spec,
                writer_epoch=writer.partial.writer_epoch,
                number=1,
                iteration=iteration,
                lease=lease,
                done=(*self.done, *done),
                begun=() if begun is None else (begun,),
                partitions=partitions,
                shared=shared,
                retrained=self.retrained,
                order=order,
            )
        )

    def committed(self) -> None:
        """Forget the iteration: its version has its files."""
        self.done, self.begun = (), None
        self.final, self.keys = {}, set()
        self.retrained = 0

    def _fetch_model(self, stored: StoredObject) -> ModelState:
        path = self._writer.partial.fetch(stored, self._scratch / "taken")
        try:
            return read_model(path)
        finally:
            path.unlink()
