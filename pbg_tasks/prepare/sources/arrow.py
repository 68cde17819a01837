"""Base of sources of other packages, which give Arrow batches.

Batches are written to scratch as Parquet once a task: DuckDB then scans them as often as it needs, in parallel and
within its memory, and errors of the package's code do not pass through the threads of a query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pbg_tasks.plugins import PluginError
from pbg_tasks.prepare.connection import scratch_of
from pbg_tasks.prepare.sources.base import Layout, Share, shared
from pbg_tasks.prepare.sources.parquet import ParquetSource
from pbg_tasks.prepare.text_files import copy_name
from pbg_tasks.storage.columnar import read_errors
from pbg_tasks.storage.files import disk_errors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    import duckdb
    import pyarrow as pa

    from pbg_tasks.config import SnapshotFile, Snapshots


class ArrowSource(ParquetSource):
    """Snapshot source that gives Arrow batches.

    A subclass needs ``schema`` and ``batches``. Parts that are no files need ``parts`` (and ``check``, where the
    location of a part does not list it again); ``where`` may name rows better than by their number.
    """

    def schema(self, file: SnapshotFile) -> pa.Schema:
        """Return the columns of a part, without reading its rows.

        Raises:
            InputError: the part is damaged.
        """
        raise NotImplementedError

    def batches(self, file: SnapshotFile, columns: Sequence[str]) -> Iterable[pa.RecordBatch]:
        """Read a part.

        Args:
            file: the part.
            columns: names of the columns that the batches have, in the schema's order; others may be there.

        Raises:
            InputError: the part is damaged.
        """
        raise NotImplementedError

    def open(
        self,
        connection: duckdb.DuckDBPyConnection,
        snapshots: Snapshots,
        files: Sequence[SnapshotFile],
        columns: Collection[str],
    ) -> dict[str, str]:
        """Write the parts to scratch, each once a task."""
        del snapshots
        places = {file.uri: _copy_of(connection, file) for file in files}
        for file in files:
            if not places[file.uri].exists():
                self._write(file, places[file.uri], columns)
        return {uri: str(path) for uri, path in places.items()}

    def close(self, connection: duckdb.DuckDBPyConnection, files: Sequence[SnapshotFile]) -> None:
        """Remove the copies."""
        for file in files:
            _copy_of(connection, file).unlink(missing_ok=True)

    def describe(
        self, connection: duckdb.DuckDBPyConnection, snapshots: Snapshots, file: SnapshotFile, place: str
    ) -> Layout | None:
        """Return the schema with DuckDB's names of types.

        A type that DuckDB lacks, such as a union, has Arrow's: only a column that is read may not have it.
        """
        import duckdb
        import pyarrow as pa

        del snapshots, place
        fields, foreign = list(self._schema(file)), dict[int, str]()
        lacking = (duckdb.NotSupportedError, pa.ArrowNotImplementedError)
        try:
            empty = connection.from_arrow(pa.schema(fields).empty_table())
        except lacking:  # of which column is not in the message
            for at, field in enumerate(fields):
                try:
                    connection.from_arrow(pa.schema([field]).empty_table())
                except lacking:
                    fields[at], foreign[at] = pa.field(field.name, pa.null()), str(field.type)
            empty = connection.from_arrow(pa.schema(fields).empty_table())
        return Layout(tuple(empty.columns), tuple(foreign.get(at, str(kind)) for at, kind in enumerate(empty.types)))

    def where(self, snapshots: Snapshots, file: SnapshotFile, place: str, row: int) -> str:
        """Return the name of a row; in a share, with its files."""
        name = super().where(snapshots, file, place, row)
        if not isinstance(file, Share):
            return name
        of, *others = shared(self.pieces(file), file)
        more = f" and {len(others)} files after it" if others else ""
        return f"{name} of {of}{more}"

    def _schema(self, file: SnapshotFile) -> Any:  # noqa: ANN401 - pyarrow has no types
        import pyarrow as pa

        with read_errors(file.uri, "read"):
            found = self.schema(file)
        if not isinstance(found, pa.Schema):
            raise PluginError(f"is wrong: schema returns {type(found).__name__}, not a pyarrow.Schema")
        return found

    def _batches(self, file: SnapshotFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield batches, with errors that name the part instead of scratch."""
        with read_errors(file.uri, "read"):
            yield from self.batches(file, columns)

    def _write(self, file: SnapshotFile, path: Path, columns: Collection[str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        whole = self._schema(file)
        schema = pa.schema([field for field in whole if field.name in columns])
        partial = path.with_suffix(".partial")
        with disk_errors(partial):
            path.parent.mkdir(exist_ok=True)
            with pq.ParquetWriter(partial, schema) as writer:
                for batch in self._batches(file, schema.names):
                    chosen = batch.select(schema.names)
                    if not chosen.schema.equals(schema):
                        raise PluginError(f"is wrong: a batch of {file.uri} has other columns than its schema")
                    writer.write_batch(chosen)
        self.check(file)
        partial.replace(path)


def _copy_of(connection: duckdb.DuckDBPyConnection, file: SnapshotFile) -> Path:
    return scratch_of(connection) / "arrow" / f"{copy_name(file)}.parquet"
