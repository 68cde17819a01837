"""LanceDB: tables in a directory, local or in S3, without a server.

LanceDB has no alias. So readers follow a pointer beside the tables (``filed.py``), which names a table and its version
for each entity type. Versions are immutable, so what was checked is what readers open, whatever is written into the
table later. A tag keeps that version from LanceDB's clean-up.
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pbg_tasks.config.sinks import LanceDBOptions
from pbg_tasks.errors import ConfigError, ConflictError, NotFoundError, PbgError, StorageError
from pbg_tasks.progress import say
from pbg_tasks.publish.sinks.base import Rows, Sink, TableRecord
from pbg_tasks.publish.sinks.checking import first_rows
from pbg_tasks.publish.sinks.filed import FiledTables
from pbg_tasks.publish.sinks.registry import library
from pbg_tasks.storage import is_remote, open_store
from pbg_tasks.storage.endpoint import ENDPOINT_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

    from pbg_tasks.storage import Store

CHECKED = "pbg-checked"
"""Tag of the version that was checked."""
_CACHE_BYTES = 128 << 20  # LanceDB's own are of 6 and 1 GB, which no forecast of a task's memory knows
_CLONES = (
    "; in S3, LanceDB's copy has the endpoint of AWS_ENDPOINT_URL, and credentials of AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, of AWS_PROFILE or of the machine's role"
)
_QUERIES = 256  # queries of one search
_FETCHED = 1000  # rows of one filter


class LanceSink(Sink):
    """Sink ``lancedb``."""

    sink_options = LanceDBOptions

    @contextmanager
    def connect(self, destination: str, options: LanceDBOptions) -> Iterator[LanceTables]:
        """Open a directory of tables."""
        if is_remote(destination) and not destination.startswith("s3://"):
            raise ConfigError(f"{destination}: lancedb takes a directory or s3://bucket/prefix")
        os.environ.setdefault("LANCEDB_LOG", "error")  # each new table is a warning otherwise
        lancedb, store = library("lancedb", sink="sink lancedb", extra="lancedb"), open_store(destination)
        if not is_remote(destination) and Path(store.url).is_file():
            raise ConfigError(f"{destination}: is a file; lancedb takes a directory, and makes one")
        with _errors(store.url), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of LanceDB's own calls
            caches = lancedb.Session(index_cache_size_bytes=_CACHE_BYTES, metadata_cache_size_bytes=_CACHE_BYTES)
            database = lancedb.connect(store.url, storage_options=_storage_options(store.url), session=caches)
            yield LanceTables(lancedb, database, store, options)


def _storage_options(url: str) -> dict[str, str] | None:
    """Return the settings of LanceDB's own S3 client."""
    if not url.startswith("s3://"):
        return None
    from pbg_tasks.storage.s3_settings import s3_settings

    found = s3_settings()
    options = {
        "aws_access_key_id": found.key,
        "aws_secret_access_key": found.secret,
        "aws_region": found.region,
        "timeout": "60s",
        "connect_timeout": "5s",
    }
    if found.token:
        options["aws_session_token"] = found.token
    if found.unencrypted:
        os.environ["AWS_ALLOW_HTTP"] = "true"  # for clones, whose client has no settings but those of the environment
    if found.endpoint:
        options |= {"aws_endpoint": found.endpoint, "allow_http": str(found.unencrypted).lower()}
    return options


def _check_endpoint(url: str) -> None:
    """Refuse a clone that would ask another endpoint than the store's.

    Raises:
        StorageError: the store's endpoint is not from the environment.
    """
    if not url.startswith("s3://") or any(os.environ.get(name) for name in ENDPOINT_VARIABLES):
        return
    from pbg_tasks.storage.s3_settings import s3_settings

    if (endpoint := s3_settings().endpoint) is not None:
        raise StorageError(f"{url}: the endpoint {endpoint} is from a configuration file{_CLONES}")


@contextmanager
def _errors(url: str) -> Iterator[None]:
    """Turn LanceDB's errors into errors of this package.

    Raises:
        StorageError: LanceDB failed.
    """
    try:
        yield
    except PbgError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise StorageError(
            f"{url}: LanceDB failed ({error}); run the export again, it goes on where it ended"
        ) from error


class LanceTables(FiledTables):
    """Tables of a directory, with their records and the pointer beside them.

    Args:
        lancedb: the library.
        database: its connection.
        store: of the same directory.
        options: of the sink.
    """

    def __init__(self, lancedb: ModuleType, database: Any, store: Store, options: LanceDBOptions) -> None:  # noqa: ANN401 - untyped
        super().__init__(store)
        self._lancedb, self._database = lancedb, database
        self._options = options

    def make(self, table: str, record: TableRecord) -> None:
        """Make a table of the columns ``row``, ``id`` and ``vector``."""
        empty = Rows([], np.empty((0, record.dimension), np.float32))
        schema = _arrow(np.empty(0, np.int64), empty).schema
        self._database.create_table(table, schema=schema, mode="overwrite")

    def copy(self, table: str, record: TableRecord, base: TableRecord) -> None:
        """Clone a table; the clone's files are references to the base's.

        The record is first: it keeps other exports from dropping the base.
        """
        uri = f"{self.store.url}/{record.bases[0]}.lance"
        _check_endpoint(self.store.url)
        self.complete(table, record)
        self._database.drop_table(table, ignore_missing=True)
        try:
            self._database.clone_table(table, uri, source_version=base.version, is_shallow=True)
        except (OSError, RuntimeError, ValueError) as error:
            raise StorageError(f"{uri}: LanceDB cannot copy this table ({error}){_CLONES}") from error

    def count(self, table: str, record: TableRecord) -> int:
        """Read the numbers of all rows."""
        with _errors(f"{self.store.url}/{table}.lance"):
            found = self._open(table, record)
            if found is None:
                return 0
            batches = found.search().select(["row"]).limit(found.count_rows() + 1).to_batches()
            return first_rows((batch["row"].to_numpy() for batch in batches), f"{self.store.url}/{table}.lance")

    def add(self, table: str, start: int, rows: Rows) -> None:
        """Append rows in one version of the table."""
        found = self._database.open_table(table)
        found.add(_arrow(np.arange(start, start + len(rows.names), dtype=np.int64), rows))
        if found.count_rows() != start + len(rows.names):
            found.restore(found.version - 1)  # without these rows, with which the other export would end, too
            raise ConflictError(
                f"{self.store.url}/{table}.lance: another export writes into this table too; wait for it, or end it, "
                "and run this one again"
            )

    def read(self, table: str, record: TableRecord) -> Iterator[tuple[np.ndarray, Rows]]:
        """Read the rows batch by batch."""
        found = self._there(table, record)
        for batch in found.search().select(["row", "id", "vector"]).limit(found.count_rows() + 1).to_batches():
            vectors = batch["vector"].flatten().to_numpy().reshape(-1, record.dimension)
            yield batch["row"].to_numpy(), Rows(batch["id"].to_pylist(), vectors)

    def replace(self, table: str, numbers_N: np.ndarray, rows: Rows) -> None:
        """Write rows in one version of the table."""
        merge = self._database.open_table(table).merge_insert("row")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(_arrow(numbers_N, rows))

    def cut(self, table: str, rows: int) -> None:
        """Remove the last rows."""
        self._database.open_table(table).delete(f"row >= {rows}")

    def finish(self, table: str, record: TableRecord) -> TableRecord:
        """Merge the small files of a table, and build its index.

        The version that results is tagged.
        """
        found, options = self._database.open_table(table), self._options
        if options.index == "none":  # the pointer names none, so that of another program must not answer readers
            for each in _vector_indices(found):
                found.drop_index(each.name)
        indexed = bool(_vector_indices(found))
        if indexed and record.bases:
            try:
                found.optimize()  # adds the rows that were replaced to the index
            except RuntimeError as error:
                # Where LanceDB rebalances an index, it looks for the new files of a clone in the folder of its base
                # (lance-format/lance#9176 is about the same place).
                say(f"export lancedb: {table}: its index is built anew, as LanceDB failed to add rows ({error!s:.80})")
                found = self._database.open_table(table)
                self._index(found, record)
        elif options.index != "none" and record.rows >= options.index_from and not indexed:
            found.optimize()
            self._index(found, record)
        version = found.version
        if CHECKED in found.tags.list():
            found.tags.update(CHECKED, version)
        else:
            found.tags.create(CHECKED, version)
        return record.model_copy(update={"version": version})

    def _index(self, found: Any, record: TableRecord) -> None:  # noqa: ANN401 - untyped
        """Build the index of a table, or build it anew."""
        kinds = {"IVF_PQ": "IvfPq", "IVF_FLAT": "IvfFlat", "IVF_SQ": "IvfSq"}
        kinds |= {"IVF_HNSW_SQ": "HnswSq", "IVF_HNSW_PQ": "HnswPq"}
        kind = getattr(self._lancedb.index, kinds[self._options.index])
        config = kind(distance_type=record.metric, num_partitions=self._options.partitions)
        found.create_index("vector", config=config, replace=True)

    def fetch(self, table: str, record: TableRecord, numbers_S: np.ndarray) -> Rows:
        """Read rows by their numbers."""
        found = self._there(table, record)
        names: list[str] = []
        vectors = [np.empty((0, record.dimension), np.float32)]
        for start in range(0, len(numbers_S), _FETCHED):
            part = numbers_S[start : start + _FETCHED]
            rows = found.search().where(f"row IN ({', '.join(map(str, part.tolist()))})").limit(len(part)).to_arrow()
            rows = rows.sort_by("row")
            names += rows["id"].to_pylist()
            values = rows["vector"].combine_chunks().flatten().to_numpy()
            vectors.append(values.reshape(-1, record.dimension))
        return Rows(names, np.concatenate(vectors))

    def search(self, table: str, record: TableRecord, queries_SD: np.ndarray, count: int) -> np.ndarray:
        """Search with the parameters that the pointer names."""
        found, nearest_SK = self._there(table, record), np.full((len(queries_SD), count), -1, np.int64)
        for start in range(0, len(queries_SD), _QUERIES):
            part = queries_SD[start : start + _QUERIES]
            query = found.search(part, vector_column_name="vector").distance_type(record.metric)
            for name, value in self.parameters(record).items():
                query = getattr(query, name)(value)
            rows = query.limit(count).select(["row", "_distance"]).to_arrow()
            numbers = rows["row"].to_numpy()
            queries = rows["query_index"].to_numpy() if len(part) > 1 else np.zeros(len(numbers), np.int64)
            order = np.lexsort((rows["_distance"].to_numpy(), queries))
            numbers, queries = numbers[order], queries[order]
            place = np.arange(len(queries)) - np.searchsorted(queries, queries)
            nearest_SK[start + queries, place] = numbers
        return nearest_SK

    def switch(self, collection: str, tables: Mapping[str, tuple[str, TableRecord]]) -> None:
        """Swap the pointer, which names the checked version of each table."""
        if unchecked := [table for table, record in tables.values() if record.version is None]:
            raise RuntimeError(f"{unchecked[0]} was not checked: a bug")
        super().switch(collection, tables)

    def remove(self, table: str) -> None:
        """Remove a table with all its versions."""
        self._database.drop_table(table, ignore_missing=True)

    def _open(self, table: str, record: TableRecord) -> Any:  # noqa: ANN401 - untyped
        """Return a table, in its checked version if it has one.

        None is returned where it is missing.
        """
        try:
            found = self._database.open_table(table)
        except ValueError as error:
            if "not found" not in str(error):
                raise
            return None
        if record.version is not None:
            found.checkout(record.version)
        return found

    def _there(self, table: str, record: TableRecord) -> Any:  # noqa: ANN401 - untyped
        found = self._open(table, record)
        if found is None:
            raise NotFoundError(f"{self.store.url}/{table}.lance: another export or a person removed this table")
        return found

    def parameters(self, record: TableRecord) -> dict[str, int]:
        """Return the parameters of the index; none without one."""
        options = LanceDBOptions.model_validate(record.options)
        if options.index == "none" or record.rows < options.index_from:
            return {}
        return {"nprobes": options.nprobes, "refine_factor": options.refine_factor}


def _vector_indices(table: Any) -> list[Any]:  # noqa: ANN401 - lancedb has no types
    return [index for index in table.list_indices() if "vector" in index.columns]


def _arrow(numbers_N: np.ndarray, rows: Rows) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return rows with their numbers as an Arrow table."""
    import pyarrow as pa

    values = pa.array(np.ascontiguousarray(rows.vectors).ravel())
    vectors = pa.FixedSizeListArray.from_arrays(values, rows.vectors.shape[1])
    return pa.table({"row": pa.array(numbers_N), "id": pa.array(rows.names, pa.string()), "vector": vectors})
