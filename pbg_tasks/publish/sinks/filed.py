"""Tables whose records and aliases are documents of a store.

For vector stores without metadata or aliases of their own. The record of a table is
``_pbg/{collection}/tables/{table}.json``. Readers follow a pointer, ``_pbg/{collection}/current.json``, which one
compare-and-swap replaces: it names a table for each entity type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pbg_tasks.checkpoint.manifest import REQUIRES, Stamped, encode_unique, find_document
from pbg_tasks.config.base import Frozen, canonical_json
from pbg_tasks.errors import ConflictError
from pbg_tasks.publish.sinks.base import TableRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pbg_tasks.storage import Store
    from pbg_tasks.storage.base import ObjectInfo


class ServedTable(Frozen):
    """Table that readers open.

    Attributes:
        table: its name.
        version: that they check out; null in a vector store without versions.
        metric: of its search.
        dimension: of its vectors.
        skipped_dimensions: number of first dimensions that queries leave out.
        source: URL of the checkpoint directory.
        search: parameters of the search that was checked.
    """

    table: str
    version: int | None = None
    metric: str
    dimension: int
    skipped_dimensions: int
    source: str
    search: dict[str, int] = Field(default_factory=dict)


class Pointer(Stamped):
    """Tables that readers open, by alias."""

    format: Literal[1] = 1
    tables: dict[str, ServedTable] = Field(default_factory=dict)


class FiledTables:
    """Base of such tables, which leaves the rows to subclasses.

    A subclass has ``make`` and ``remove``, and of ``Tables`` the methods ``count``, ``add``, ``fetch`` and ``search``.

    Args:
        store: of the documents.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def make(self, table: str, record: TableRecord) -> None:
        """Make an empty table, in place of an older one."""
        raise NotImplementedError

    def remove(self, table: str) -> None:
        """Remove a table, if it exists."""
        raise NotImplementedError

    def create(self, table: str, record: TableRecord) -> None:
        """Make a table, then its document."""
        self.make(table, record)
        self.complete(table, record)

    def records(self, collection: str) -> dict[str, TableRecord]:
        """Read the documents of a collection's tables."""
        found = {}
        for info in list(self.store.list(f"_pbg/{collection}/tables/")):
            there = find_document(TableRecord, self.store, info.key)
            if there is not None:  # else another export dropped it meanwhile
                found[info.key.rpartition("/")[2].removesuffix(".json")] = there[0]
        return found

    def finish(self, table: str, record: TableRecord) -> TableRecord:
        """Return the record as it is: there is no index to build."""
        del table
        return record

    def complete(self, table: str, record: TableRecord) -> None:
        """Replace the document of a table.

        Versions that do not know what a table shares would drop a base.
        """
        needs = {REQUIRES: ["bases"]} if record.bases else {}
        self.store.put(_document(table, record), canonical_json(record.model_dump(mode="json") | needs))

    def served(self, collection: str) -> dict[str, str]:
        """Return the tables that the pointer names."""
        return {alias: served.table for alias, served in self._pointer(collection)[0].tables.items()}

    def switch(self, collection: str, tables: Mapping[str, tuple[str, TableRecord]]) -> None:
        """Swap the pointer, again where another export swapped it meanwhile."""
        moved = {alias: self._served(*found) for alias, found in tables.items()}
        while True:
            there, info = self._pointer(collection)
            pointer = Pointer(tables={**there.tables, **moved})
            if pointer == there:
                return
            try:
                self.store.swap(_pointer_key(collection), encode_unique(pointer), expected=info)
            except ConflictError:
                continue
            return

    def drop(self, table: str, record: TableRecord) -> None:
        """Remove a table, then its document."""
        self.remove(table)
        self.store.delete(_document(table, record))

    def parameters(self, record: TableRecord) -> dict[str, int]:
        """Return the parameters with which readers search a table."""
        del record
        return {}

    def _served(self, table: str, record: TableRecord) -> ServedTable:
        return ServedTable(
            table=table,
            version=record.version,
            metric=record.metric,
            dimension=record.dimension,
            skipped_dimensions=record.skipped_dimensions,
            source=record.source,
            search=self.parameters(record),
        )

    def _pointer(self, collection: str) -> tuple[Pointer, ObjectInfo | None]:
        return find_document(Pointer, self.store, _pointer_key(collection)) or (Pointer(), None)


def _document(table: str, record: TableRecord) -> str:
    return f"_pbg/{record.collection}/tables/{table}.json"


def _pointer_key(collection: str) -> str:
    return f"_pbg/{collection}/current.json"
