"""Qdrant: a collection a release, behind an alias.

The record of a collection is its metadata. Aliases of all types move by one request, which Qdrant applies as a whole.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from pbg_tasks.checkpoint.manifest import decode, encode
from pbg_tasks.config.base import canonical_json
from pbg_tasks.config.sinks import QdrantOptions
from pbg_tasks.errors import ConfigError, ConflictError, StorageError
from pbg_tasks.publish.sinks.base import Rows, Sink, TableRecord, refuse_taken
from pbg_tasks.publish.sinks.registry import client_errors, library
from pbg_tasks.redaction import credentials_in, shown
from pbg_tasks.storage.endpoint import Endpoints

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import ModuleType

_RECORD = "pbg"
_API_KEY, _PLACE = "QDRANT_API_KEY", "the destination of sink qdrant"
_POINTS, _REQUEST_BYTES = 500, 8 << 20  # most of one request; a server refuses those of 32 MiB
_DIGITS = 24  # bytes of a vector's number, as JSON
_QUERIES = 100  # queries of one request
_LOOKS_SECONDS = 1.0
_REFUSED = (401, 403)


class QdrantSink(Sink):
    """Sink ``qdrant``."""

    sink_options = QdrantOptions

    @contextmanager
    def connect(self, destination: str, options: QdrantOptions) -> Iterator[QdrantTables]:
        """Open a client; a directory is the client's local mode, for trials."""
        qdrant = library("qdrant_client", sink="sink qdrant", extra="qdrant")
        if found := credentials_in(destination):
            raise ConfigError(f"{shown(destination)} holds {found}: write the place alone, and the key into {_API_KEY}")
        if destination.startswith(("http://", "https://")):
            Endpoints().check_form(destination, _PLACE)
            given: dict[str, Any] = {"url": destination, "api_key": os.environ.get(_API_KEY), "timeout": 60}
        elif "://" in destination:
            raise ConfigError(f"{destination}: qdrant takes https://host:6333")
        else:
            given = {"path": destination}
        with client_errors(
            "Qdrant", destination, _API_KEY, lambda error: getattr(error, "status_code", None) in _REFUSED
        ):
            if "url" in given:
                Endpoints().check_addresses(destination, _PLACE)
            client = qdrant.QdrantClient(**given)
            try:
                yield QdrantTables(qdrant.models, client, destination, options)
            finally:
                client.close()


class QdrantTables:
    """Collections of one server.

    Args:
        models: of the library.
        client: of the server.
        destination: its URL, for messages.
        options: of the sink.
    """

    def __init__(self, models: ModuleType, client: Any, destination: str, options: QdrantOptions) -> None:  # noqa: ANN401 - untyped
        self._models, self._client = models, client
        self._destination, self._options = destination, options

    def records(self, collection: str) -> dict[str, TableRecord]:
        """Read the metadata of a collection's tables."""
        found = {}
        for each in self._client.get_collections().collections:
            if each.name.startswith(f"{collection}_"):
                metadata = self._client.get_collection(each.name).config.metadata or {}
                if _RECORD in metadata:
                    source = f"{self._destination}, metadata of collection {each.name}"
                    record = decode(TableRecord, canonical_json(metadata[_RECORD]), source=source)
                    if record.collection == collection:
                        found[each.name] = record
        return found

    def create(self, table: str, record: TableRecord) -> None:
        """Make a collection, whose points are indexed when all are there.

        Raises:
            ConflictError: its alias, or one that moves with it, is another collection's.
        """
        models = self._models
        self._refuse_taken(record.collection, (record.alias, *record.together))
        distance = {"l2": models.Distance.EUCLID, "cosine": models.Distance.COSINE, "dot": models.Distance.DOT}
        self._client.delete_collection(table)
        self._client.create_collection(
            table,
            vectors_config=models.VectorParams(size=record.dimension, distance=distance[record.metric]),
            hnsw_config=models.HnswConfigDiff(m=self._options.m, ef_construct=self._options.ef_construct),
            optimizers_config=models.OptimizersConfigDiff(indexing_threshold=0),
            metadata=_metadata(record),
        )

    def count(self, table: str, record: TableRecord) -> int:
        """Count the points; none may have a higher number."""
        del record
        if not self._client.collection_exists(table):
            return 0
        found = int(self._client.count(table, exact=True).count)
        beyond, _ = self._client.scroll(table, limit=1, offset=found, with_payload=False, with_vectors=False)
        if beyond:
            raise ConflictError(
                f"{self._destination}: collection {table} lacks some of its first rows; the export fills it anew"
            )
        return found

    def add(self, table: str, start: int, rows: Rows) -> None:
        """Write points, whose ids are the numbers of their rows.

        A second write of them changes nothing.
        """
        longest = max((len(name.encode()) for name in rows.names), default=0)
        step = max(1, min(_POINTS, _REQUEST_BYTES // (_DIGITS * rows.vectors.shape[1] + longest)))
        for first in range(0, len(rows.names), step):
            names = rows.names[first : first + step]
            batch = self._models.Batch(
                ids=list(range(start + first, start + first + len(names))),
                vectors=rows.vectors[first : first + step].tolist(),
                payloads=[{"id": name} for name in names],
            )
            self._client.upsert(table, points=batch, wait=True)

    def finish(self, table: str, record: TableRecord) -> TableRecord:
        """Let the server build its index, and wait for it."""
        threshold = self._options.indexing_threshold_kb
        optimizers = self._models.OptimizersConfigDiff(indexing_threshold=threshold)
        self._client.update_collection(table, optimizers_config=optimizers)
        statuses = self._models.CollectionStatus
        while (status := self._client.get_collection(table).status) != statuses.GREEN:
            if status == statuses.RED:
                raise StorageError(
                    f"{self._destination}: collection {table} failed to be optimized; see the server's log"
                )
            if status == statuses.GREY:  # a server that was restarted goes on only after an update
                self._client.update_collection(table, optimizers_config=optimizers)
            time.sleep(_LOOKS_SECONDS)
        return record

    def fetch(self, table: str, record: TableRecord, numbers_S: np.ndarray) -> Rows:
        """Read points by their ids; of ``cosine`` they have length 1."""
        found = self._client.retrieve(table, ids=numbers_S.tolist(), with_vectors=True, with_payload=True)
        found = sorted(found, key=lambda point: point.id)
        vectors = np.array([point.vector for point in found], np.float32).reshape(-1, record.dimension)
        return Rows([point.payload["id"] for point in found], vectors)

    def search(self, table: str, record: TableRecord, queries_SD: np.ndarray, count: int) -> np.ndarray:
        """Search with the option ``hnsw_ef``."""
        del record
        nearest_SK = np.full((len(queries_SD), count), -1, np.int64)
        parameters = self._models.SearchParams(hnsw_ef=self._options.hnsw_ef)
        for start in range(0, len(queries_SD), _QUERIES):
            requests = [
                self._models.QueryRequest(query=query, limit=count, params=parameters, with_payload=False)
                for query in queries_SD[start : start + _QUERIES].tolist()
            ]
            for number, answer in enumerate(self._client.query_batch_points(table, requests=requests)):
                found = [point.id for point in answer.points]
                nearest_SK[start + number, : len(found)] = found
        return nearest_SK

    def complete(self, table: str, record: TableRecord) -> None:
        """Replace the metadata of a collection."""
        self._client.update_collection(table, metadata=_metadata(record))

    def served(self, collection: str) -> dict[str, str]:
        """Return the collection behind each alias."""
        found = self._client.get_aliases().aliases
        records = self.records(collection)
        return {each.alias_name: each.collection_name for each in found if each.collection_name in records}

    def _refuse_taken(self, collection: str, aliases: Iterable[str]) -> None:
        """Refuse aliases that are not the collection's.

        Raises:
            ConflictError: one is not.
        """
        taken = {each.alias_name for each in self._client.get_aliases().aliases} - self.served(collection).keys()
        refuse_taken(self._destination, collection, aliases, taken)

    def switch(self, collection: str, tables: Mapping[str, tuple[str, TableRecord]]) -> None:
        """Move all aliases by one request.

        Raises:
            ConflictError: an alias of that name is another collection's.
        """
        models, there = self._models, self.served(collection)
        self._refuse_taken(collection, tables)
        operations: list[Any] = []
        for alias, (table, _) in tables.items():
            if alias in there:
                operations.append(models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=alias)))
            made = models.CreateAlias(collection_name=table, alias_name=alias)
            operations.append(models.CreateAliasOperation(create_alias=made))
        self._client.update_collection_aliases(change_aliases_operations=operations)

    def drop(self, table: str, record: TableRecord) -> None:
        """Remove a collection with its record."""
        del record
        self._client.delete_collection(table)


def _metadata(record: TableRecord) -> dict[str, Any]:
    encode(record)  # refuses what no stored document may hold
    return {_RECORD: record.model_dump(mode="json")}
