"""Milvus: a collection a release, behind an alias.

The record of a collection is one of its properties. Milvus moves one alias a request, so of a model with several entity
types readers may see one type's new release a moment before another's.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pbg_tasks.checkpoint.manifest import decode, encode
from pbg_tasks.config.sinks import MilvusOptions
from pbg_tasks.errors import ConfigError, ConflictError, FormatError, StorageError
from pbg_tasks.publish.sinks.base import Rows, Sink, TableRecord, refuse_taken
from pbg_tasks.publish.sinks.registry import client_errors, library
from pbg_tasks.redaction import credentials_in, shown
from pbg_tasks.storage.endpoint import Endpoints
from pbg_tasks.storage.files import make_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import ModuleType

_RECORD, _PLACE = "pbg.record", "the destination of sink milvus"
_TOKEN = "MILVUS_TOKEN"  # noqa: S105 - the name of a variable
_METRICS = {"l2": "L2", "cosine": "COSINE", "dot": "IP"}
_REQUEST_BYTES = 8 << 20  # of names and vectors in one request; a server refuses messages of 64 MiB
_LONGEST_NAME = 65_535  # bytes of a VARCHAR
_QUERIES = 100  # queries of one request
_FETCHED = 500  # rows of one request
_LOOKS_SECONDS = 1.0
_REFUSED = re.compile(
    r"UNAUTHENTICATED|PERMISSION_DENIED"
    r"|(?<![\w./-])(auth|(un)?authori[sz](ed|ation)|authenticat(ed|ion)|permission)(?![\w/-]|\.\w|:\d)",
    re.IGNORECASE,
)
"""Words of refusals, which are also parts of names: of hosts, folders, or the collection of a type ``author``."""


class MilvusSink(Sink):
    """Sink ``milvus``."""

    sink_options = MilvusOptions

    @contextmanager
    def connect(self, destination: str, options: MilvusOptions) -> Iterator[MilvusTables]:
        """Open a client; a directory holds the embedded Milvus Lite."""
        if found := credentials_in(destination):
            raise ConfigError(f"{shown(destination)} holds {found}: write the place alone, and the token into {_TOKEN}")
        if destination.startswith(("http://", "https://")):
            Endpoints().check_form(destination, _PLACE)
            given = {"uri": destination, "token": os.environ.get(_TOKEN, ""), "timeout": 60}
        elif "://" in destination:
            raise ConfigError(f"{destination}: milvus takes https://host:19530 or a directory")
        else:
            library("milvus_lite", sink="sink milvus", extra="milvus")
            given = {"uri": str(Path(destination) / "milvus.db")}
        pymilvus = library("pymilvus", sink="sink milvus", extra="milvus")
        if "token" not in given:
            make_directory(Path(destination))
        with client_errors("Milvus", destination, _TOKEN, lambda error: _REFUSED.search(str(error))):
            if "token" in given:
                Endpoints().check_addresses(destination, _PLACE)
            client = pymilvus.MilvusClient(**given)
            try:
                yield MilvusTables(pymilvus, client, destination, options)
            finally:
                client.close()


class MilvusTables:
    """Collections of one server.

    Args:
        pymilvus: the library.
        client: of the server.
        destination: its URL, for messages.
        options: of the sink.
    """

    def __init__(self, pymilvus: ModuleType, client: Any, destination: str, options: MilvusOptions) -> None:  # noqa: ANN401 - untyped
        self._pymilvus, self._client = pymilvus, client
        self._destination, self._options = destination, options

    def records(self, collection: str) -> dict[str, TableRecord]:
        """Read the properties of a collection's tables."""
        found = {}
        for name in self._client.list_collections():
            if name.startswith(f"{collection}_"):
                properties = self._client.describe_collection(name).get("properties") or {}
                if _RECORD in properties:
                    source = f"{self._destination}, properties of collection {name}"
                    record = decode(TableRecord, properties[_RECORD].encode(), source=source)
                    if record.collection == collection:
                        found[name] = record
        return found

    def create(self, table: str, record: TableRecord) -> None:
        """Make a collection with its index, which grows with the rows.

        Raises:
            ConflictError: its alias, or one that moves with it, is another collection's.
        """
        self._refuse_taken(record.collection, (record.alias, *record.together))
        kinds = self._pymilvus.DataType
        self._client.drop_collection(table)
        schema = self._pymilvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("row", kinds.INT64, is_primary=True)
        schema.add_field("id", kinds.VARCHAR, max_length=_LONGEST_NAME)
        schema.add_field("vector", kinds.FLOAT_VECTOR, dim=record.dimension)
        index = self._pymilvus.MilvusClient.prepare_index_params()
        building = {"M": self._options.m, "efConstruction": self._options.ef_construction}
        index.add_index("vector", index_type="HNSW", metric_type=_METRICS[record.metric], params=building)
        self._client.create_collection(table, schema=schema, index_params=index, consistency_level="Strong")
        self._client.load_collection(table)
        self.complete(table, record)

    def count(self, table: str, record: TableRecord) -> int:
        """Count the rows; none may have a higher number."""
        del record
        if not self._client.has_collection(table):
            return 0
        self._client.load_collection(table)
        found = int(self._client.query(table, filter="", output_fields=["count(*)"])[0]["count(*)"])
        if self._client.query(table, filter=f"row >= {found}", output_fields=["row"], limit=1):
            raise ConflictError(
                f"{self._destination}: collection {table} lacks some of its first rows; the export fills it anew"
            )
        return found

    def add(self, table: str, start: int, rows: Rows) -> None:
        """Write rows by their primary key: a second write changes nothing."""
        long = max(rows.names, key=lambda name: len(name.encode()), default="")
        if (longest := len(long.encode())) > _LONGEST_NAME:
            raise FormatError(f"table {table}: Milvus holds names of {_LONGEST_NAME} bytes at most, not {long!r:.60}")
        step = max(1, _REQUEST_BYTES // (4 * rows.vectors.shape[1] + longest))
        for first in range(0, len(rows.names), step):
            pairs = zip(rows.names[first : first + step], rows.vectors[first : first + step].tolist(), strict=True)
            data = [
                {"row": number, "id": name, "vector": vector}
                for number, (name, vector) in enumerate(pairs, start=start + first)
            ]
            self._client.upsert(table, data)

    def finish(self, table: str, record: TableRecord) -> TableRecord:
        """Write all rows to disk, and wait for the index."""
        self._client.flush(table)
        while int((found := self._client.describe_index(table, "vector")).get("pending_index_rows") or 0):
            if found.get("state") == "Failed":
                raise StorageError(
                    f"{self._destination}: the index of collection {table} failed; see the server's log, drop the "
                    "collection, and run the export again"
                )
            time.sleep(_LOOKS_SECONDS)
        return record

    def fetch(self, table: str, record: TableRecord, numbers_S: np.ndarray) -> Rows:
        """Read rows by their numbers."""
        found: list[dict[str, Any]] = []
        for start in range(0, len(numbers_S), _FETCHED):
            found += self._client.get(table, ids=numbers_S[start : start + _FETCHED].tolist())
        found.sort(key=lambda row: int(row["row"]))
        vectors = np.array([row["vector"] for row in found], np.float32).reshape(-1, record.dimension)
        return Rows([row["id"] for row in found], vectors)

    def search(self, table: str, record: TableRecord, queries_SD: np.ndarray, count: int) -> np.ndarray:
        """Search with the option ``ef``."""
        nearest_SK = np.full((len(queries_SD), count), -1, np.int64)
        parameters = {"metric_type": _METRICS[record.metric], "params": {"ef": max(self._options.ef, count)}}
        for start in range(0, len(queries_SD), _QUERIES):
            part = queries_SD[start : start + _QUERIES].tolist()
            answers = self._client.search(
                table, data=part, anns_field="vector", limit=count, search_params=parameters, output_fields=["row"]
            )
            for number, answer in enumerate(answers):
                found = [int(hit["row"]) for hit in answer]
                nearest_SK[start + number, : len(found)] = found
        return nearest_SK

    def complete(self, table: str, record: TableRecord) -> None:
        """Replace the property with the record."""
        self._client.alter_collection_properties(table, {_RECORD: encode(record).decode()})

    def served(self, collection: str) -> dict[str, str]:
        """Return the collection behind each alias."""
        return {
            alias: name for name in self.records(collection) for alias in self._client.list_aliases(name)["aliases"]
        }

    def _refuse_taken(self, collection: str, aliases: Iterable[str]) -> None:
        taken = {*self._client.list_aliases()["aliases"]} - self.served(collection).keys()
        refuse_taken(self._destination, collection, aliases, taken)

    def switch(self, collection: str, tables: Mapping[str, tuple[str, TableRecord]]) -> None:
        """Move aliases, one after the other.

        Raises:
            ConflictError: an alias of that name is another collection's.
        """
        self._refuse_taken(collection, tables)
        there = self.served(collection)
        for alias, (table, _) in tables.items():
            if alias in there:
                self._client.alter_alias(table, alias)
            else:
                self._client.create_alias(table, alias)

    def drop(self, table: str, record: TableRecord) -> None:
        """Remove a collection with its record."""
        del record
        self._client.drop_collection(table)
