"""Work of executors that write.

Input come sorted, in batches, so that a task holds a piece of a file at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pbg_tasks.formats.edges import EdgeFileWriter, EdgeList, edge_file_name
from pbg_tasks.formats.entities import (
    entity_count_file_name,
    entity_names_file_name,
    write_entity_columns,
    write_entity_count,
)
from pbg_tasks.formats.entity_sets import EXPIRED, EntitySet
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.spark.files import reported, watched
from pbg_tasks.prepare.sql import one_file, parquet_rows, quoted
from pbg_tasks.storage.staging import Scratch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pbg_tasks.config import GraphSpec
    from pbg_tasks.prepare.spark.files import Destination, Outcome


@dataclass(frozen=True, slots=True)
class WriteNames:
    """Write names and counts of partitions.

    Input are rows ``(partition, name)``, sorted by partition and offset; a partition whose only name is null is empty.

    Attributes:
        entity: type.
        destination: of the files.
    """

    entity: str
    destination: Destination

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a report on each file."""
        return reported(watched(f"names of {self.entity}", self._write(rows)))

    def _write(self, rows: Iterator[pa.RecordBatch]) -> Iterator[Outcome]:
        with Scratch() as scratch:
            for partition, pieces in _runs(rows, "partition"):
                names = (piece.column("name").drop_null() for piece in pieces)
                count = write_entity_columns(scratch.path, self.entity, partition, names)
                write_entity_count(scratch.path, self.entity, partition, count)
                for name in (entity_names_file_name, entity_count_file_name):
                    yield self.destination.put(scratch.path, name(self.entity, partition))


@dataclass(frozen=True, slots=True)
class WriteExpired:
    """Write the set of entities that a rule hides.

    Input are rows ``(type, partition, offset)``, sorted, with the types' numbers; a task holds all of them, 16 bytes
    each.

    Attributes:
        types: names by number; each is in the file.
        destination: of the file.
    """

    types: tuple[str, ...]
    destination: Destination

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a report on the file."""
        return reported(watched(EXPIRED, self._write(rows)))

    def _write(self, rows: Iterator[pa.RecordBatch]) -> Iterator[Outcome]:
        table = pa.Table.from_batches(list(rows))
        partitions, offsets = {}, {}
        for number, name in enumerate(self.types):
            own = table.filter(pc.equal(table["type"], number))
            partitions[name], offsets[name] = own["partition"].to_numpy(), own["offset"].to_numpy()
        with Scratch() as scratch:
            (scratch.path / EXPIRED).write_bytes(EntitySet(partitions, offsets).to_bytes())
            yield self.destination.put(scratch.path, EXPIRED)


@dataclass(frozen=True, slots=True)
class WriteBuckets:
    """Write buckets.

    Input are rows ``(bucket, lhs, rhs, rel, weight)``, sorted; the last only with weights. The only row of an empty
    bucket has nulls.

    Attributes:
        spec: of the graph.
        counts: edges of each bucket, by its number over folders, rows and columns; those left out are empty.
        folders: names of the folders, such as splits.
        destination: of the files.
    """

    spec: GraphSpec
    counts: dict[int, int]
    folders: tuple[str, ...]
    destination: Destination

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a report on each file."""
        return reported(watched("buckets", self._write(rows)))

    def _write(self, rows: Iterator[pa.RecordBatch]) -> Iterator[Outcome]:
        model, weighted = self.spec.model, self.spec.columns.weight is not None
        grid = len(self.folders), model.partitions("lhs"), model.partitions("rhs")
        columns = ["lhs", "rhs", "rel", *["weight"] * weighted]
        with Scratch() as scratch:
            for bucket, pieces in _runs(rows, "bucket"):
                folder, lhs, rhs = (int(each) for each in np.unravel_index(bucket, grid))
                name, count = f"{self.folders[folder]}/{edge_file_name(lhs, rhs)}", self.counts.get(bucket, 0)
                path = scratch.path / name
                path.parent.mkdir(exist_ok=True)
                with EdgeFileWriter(path, count, weighted=weighted, checksums=model.checksums) as writer:
                    for piece in pieces if count else ():
                        writer.append(EdgeList(**{each: piece.column(each).to_numpy() for each in columns}))
                yield self.destination.put(scratch.path, name)


@dataclass(frozen=True, slots=True)
class WriteTable:
    """Write the Parquet files of a table, as DuckDB writes them.

    Input are rows of ``schema``, ``file`` and ``kept``, sorted by file; a row that is not kept only makes sure that
    each file has one. One file at a time is in scratch.

    Attributes:
        spec: of the graph.
        names: of the files, by their numbers.
        schema: name and Arrow's type of each column of the input.
        query: what is written of the table ``listed``, whose rows are those of a file.
        options: of a file.
        destination: of the files.
    """

    spec: GraphSpec
    names: list[str]
    schema: dict[str, str]
    query: str
    options: str
    destination: Destination

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a report on each file."""
        files = (self._write(self.names[number], pieces) for number, pieces in _runs(rows, "file"))
        return reported(watched(self.names[0], files))

    def _write(self, name: str, rows: Iterator[pa.RecordBatch]) -> Outcome:
        schema, kind = pa.schema(list(self.schema.items())), "TABLE"
        with Scratch() as scratch:
            # On the disk in between, so that DuckDB may read it more than once while it sorts within its memory.
            unsorted = scratch.path / "rows.parquet"
            with pq.ParquetWriter(unsorted, schema, compression="lz4") as writer:
                for each_batch in rows:
                    batch = each_batch.filter(each_batch.column("kept"))
                    if not batch.num_rows:
                        continue
                    kind = "VIEW"
                    columns = [_bits(batch.column(each.name), each.type) for each in schema]
                    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            with connect(self.spec.resources, scratch.path) as connection:
                # DuckDB writes that columns have no nulls, which a file or a row group without rows would not show.
                connection.execute(f"CREATE TEMP {kind} listed AS FROM {parquet_rows([one_file(unsorted)])}")
                target = quoted(str(scratch.path / name))
                connection.execute(f"COPY ({self.query}) TO {target} (FORMAT parquet, {self.options})")
            unsorted.unlink()
            return self.destination.put(scratch.path, name)


def _bits(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column.view(kind) if pa.types.is_uint64(kind) else column.cast(kind)


def _runs(rows: Iterable[pa.RecordBatch], column: str) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """Yield the values of a sorted column, each with its rows."""

    def pieces() -> Iterator[tuple[int, pa.RecordBatch]]:
        for batch in rows:
            values = batch.column(column).to_numpy()
            cuts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
            for start, stop in pairwise(cuts):
                if stop > start:
                    yield int(values[start]), batch.slice(start, stop - start)

    for value, found in groupby(pieces(), itemgetter(0)):
        yield value, (piece for _, piece in found)
