"""Work of executors that read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pbg_tasks.config.run import SnapshotFile
from pbg_tasks.errors import FormatError, PbgError
from pbg_tasks.prepare.connection import batches, connect
from pbg_tasks.prepare.relations import make_relations
from pbg_tasks.prepare.snapshot import STAGED, open_snapshot, open_staged, reading, write_staged
from pbg_tasks.prepare.sources import Share
from pbg_tasks.prepare.spark.files import Outcome, arrow_schema, reported, signed, watched
from pbg_tasks.prepare.validate import NoEdgesError, check_rows
from pbg_tasks.storage import open_store
from pbg_tasks.storage.staging import Scratch, fetch_verified

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.config import GraphSpec
    from pbg_tasks.prepare.spark.files import Destination

BATCH_ROWS = 1 << 16
LISTED = "name string, uri string, size long, version string, number int, count int"
"""Columns of the list of what tasks stage: the name of the staged file, the part, and the share of it."""
FITTING = "lhs_type int, rhs_type int, lhs long, rhs long, rel long, drawn long, spread long, problem string"
"""Columns of edges that a relation fits: numbers of their ends' types, hashes, and two numbers to draw by."""


@dataclass(frozen=True, slots=True)
class ReadFitting:
    """Read the snapshot's files as columns ``FITTING``.

    Input are rows ``LISTED``. The row of an error of this package has only the column ``problem``, the JSON of its
    class and message.

    Attributes:
        spec: of the graph.
        query: DuckDB's, of ``raw`` and ``relations``.
    """

    spec: GraphSpec
    query: str

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the files."""
        schema = arrow_schema(FITTING)
        for batch in rows:
            for row in batch.to_pylist():
                try:
                    for found in self._read(_file(row)):
                        yield signed(found, schema)
                except PbgError as error:
                    problem = {"problem": json.dumps([type(error).__name__, str(error)])}
                    yield pa.RecordBatch.from_pylist([problem], schema=schema)

    def _read(self, file: SnapshotFile) -> Iterator[pa.RecordBatch]:
        with Scratch() as scratch, connect(self.spec.resources, scratch.path) as connection, reading([file]):
            open_snapshot(connection, self.spec, [file])
            make_relations(connection, self.spec)
            yield from batches(connection.sql(self.query), BATCH_ROWS)


def _file(row: dict[str, Any]) -> SnapshotFile:
    """Return the file, or share of a part, of a row."""
    facts = {key: row[key] for key in ("uri", "size", "version")}
    return SnapshotFile(**facts) if row["count"] == 1 else Share(**facts, number=row["number"], count=row["count"])


@dataclass(frozen=True, slots=True)
class StageFiles:
    """Read and check files of the snapshot, and store their rows.

    It is what ``prepare.validate`` does, file by file. Input are rows ``LISTED``.

    Attributes:
        spec: of the graph.
        destination: of the staged rows.
    """

    spec: GraphSpec
    destination: Destination

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a report on each file, with figures of its rows."""
        for batch in rows:
            for row in batch.to_pylist():
                yield from reported(watched(row["name"], self._stage(row["name"], _file(row))))

    def _stage(self, name: str, file: SnapshotFile) -> Iterator[Outcome]:
        with Scratch() as scratch, connect(self.spec.resources, scratch.path) as connection:
            staged, columns = write_staged(connection, self.spec, [file], scratch.path)
            figures: dict[str, object] = {"edges": 0, "self_loops": 0, "weights": None, "columns": columns}
            try:
                checked = check_rows(connection, self.spec, staged)
                figures |= {"edges": checked.edges, "self_loops": checked.self_loops, "weights": checked.weights}
            except NoEdgesError:
                pass  # the snapshot may have other files
            (scratch.path / STAGED).rename(scratch.path / name)
            yield self.destination.put(scratch.path, name, figures=json.dumps(figures))


@dataclass(frozen=True, slots=True)
class ReadStaged:
    """Read what DuckDB makes of each file of staged rows.

    Input are rows ``(key, sha256, size)``. What follows from a row alone is so computed where it is read: DuckDB takes
    a tenth of Spark's time for it, and names are most of what would go on to Java.

    Attributes:
        spec: of the graph.
        store: URL.
        query: DuckDB's, of ``raw`` and ``relations``.
        columns: of its rows, in Spark's words.
        relations: names by id, where they come from the data and have ids.
    """

    spec: GraphSpec
    store: str
    query: str
    columns: str
    relations: list[str] | None

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the files."""
        schema = arrow_schema(self.columns)
        for batch in rows:
            for key, sha256, size in zip(*batch.to_pydict().values(), strict=True):
                with Scratch() as scratch, connect(self.spec.resources, scratch.path) as connection:
                    path = fetch_verified(open_store(self.store), key, scratch.path / STAGED, sha256=sha256, size=size)
                    open_snapshot(connection, self.spec, open_staged([], path))
                    make_relations(connection, self.spec, self.relations)
                    for found in batches(connection.sql(self.query), BATCH_ROWS):
                        yield signed(found, schema)


@dataclass(frozen=True, slots=True)
class ReadTable:
    """Read columns of Parquet files that this package wrote.

    Input are rows ``(key, sha256, size)``. Numbers without a sign become those with the same bits.

    Attributes:
        store: URL.
        columns: type of each, as Arrow's name.
        younger: columns that older files lack, with the number that stands for them.
    """

    store: str
    columns: dict[str, str]
    younger: dict[str, int]

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the files.

        Raises:
            FormatError: one lacks a column.
        """
        for batch in rows:
            for key, sha256, size in zip(*batch.to_pydict().values(), strict=True):
                with Scratch() as scratch:
                    store = open_store(self.store)
                    path = fetch_verified(store, key, scratch.path / Path(key).name, sha256=sha256, size=size)
                    yield from self._read(path, f"{self.store}/{key}")

    def _read(self, path: Path, url: str) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(path) as file:
            there = file.schema_arrow.names
            if lacked := [name for name in self.columns if name not in there and name not in self.younger]:
                raise FormatError(f"{url}: has no column {lacked[0]!r}")
            for batch in file.iter_batches(BATCH_ROWS, columns=[name for name in self.columns if name in there]):
                yield pa.RecordBatch.from_arrays(
                    [self._column(batch, name, kind) for name, kind in self.columns.items()], names=list(self.columns)
                )

    def _column(self, batch: pa.RecordBatch, name: str, kind: str) -> pa.Array:
        if name not in batch.schema.names:
            return pa.array([self.younger[name]] * len(batch), kind)
        column = batch.column(name)
        return column.view(kind) if pa.types.is_uint64(column.type) else column.cast(kind)
