"""Protocol of sinks: tables of a vector store that exports fill.

Each release has tables of its own, one for each entity type. Readers do not name them: they follow an alias, a view or
a pointer, which moves in one step when all tables are filled and checked. The record of each table is kept in the store
itself, so that an export by any machine finds what an earlier one left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from pydantic import Field

from pbg_tasks.config.base import Frozen
from pbg_tasks.config.contract import Contract
from pbg_tasks.config.sinks import SinkOptions
from pbg_tasks.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import numpy as np


def refuse_taken(destination: str, collection: str, aliases: Iterable[str], others: Collection[str]) -> None:
    """Refuse aliases that are not a collection's.

    Args:
        destination: URL of the store, for messages.
        collection: that wants them.
        aliases: that it wants.
        others: aliases of the store that are not its own.

    Raises:
        ConflictError: one is among ``others``.
    """
    for alias in aliases:
        if alias in others:
            raise ConflictError(
                f"{destination}: the alias {alias} is not of collection {collection}; give the export another option "
                "collection, or remove that alias"
            )


class TableRecord(Frozen):
    """Record of one table.

    Attributes:
        collection: of the table.
        entity: type of its rows.
        alias: name that readers use.
        number: rises from table to table of the collection; newer tables have larger numbers.
        source: URL of the exported checkpoint directory.
        manifest_sha256: hash of its manifest; null where it has none.
        contract: of the model, by which readers check that its vectors fit; null where an earlier version wrote it.
        rows: that it has when it is complete.
        dimension: of its vectors.
        metric: by which it is searched.
        skipped_dimensions: number of first dimensions that the model does not compare, and that are left out.
        together: aliases of the tables that its export was to fill, which move with it.
        complete: whether it was filled and checked.
        version: of the table that was checked, in a store that keeps versions.
        recall: of its search, against an exact one.
        neighbors: the k of ``recall``.
        bases: tables whose files it shares, nearest first: it began as a copy of the first one.
    """

    format: Literal[1] = 1
    collection: str
    entity: str
    alias: str
    number: int
    source: str
    manifest_sha256: str | None = None
    contract: Contract | None = None
    rows: int
    dimension: int
    metric: Literal["l2", "cosine", "dot"]
    skipped_dimensions: int = 0
    together: tuple[str, ...] = ()
    complete: bool = False
    version: int | None = None
    recall: float | None = None
    neighbors: int | None = None
    bases: tuple[str, ...] = ()
    options: dict[str, Any] = Field(default_factory=dict)


class Rows(NamedTuple):
    """Rows of a table.

    Attributes:
        names: of the entities.
        vectors: float32 (len(names), D).
    """

    names: Sequence[str]
    vectors: np.ndarray


class Tables(Protocol):
    """Tables of one store, while a connection to it is open.

    A row has a number, from 0 in the order of the export, an entity's name and a vector. Every method raises
    ``StorageError`` (or its ``AccessError``) when the store fails or refuses.
    """

    def records(self, collection: str) -> dict[str, TableRecord]:
        """Return the records of a collection's tables, by table."""
        ...

    def create(self, table: str, record: TableRecord) -> None:
        """Make and record an empty table, in place of an older one."""
        ...

    def count(self, table: str, record: TableRecord) -> int:
        """Return the number of rows, which are the first ones.

        Of a checked table that is its checked version. A missing table has none.

        Raises:
            StorageError: rows cannot be read; a table that shares files with others is then written whole.
            ConflictError: they are others, as after two exports filled the table at once.
        """
        ...

    def add(self, table: str, start: int, rows: Rows) -> None:
        """Write rows, of which the first has the number ``start``.

        They are all there when the call returns. A second call with the same rows changes nothing, or ``count`` then
        refuses the table.

        Raises:
            ConflictError: another export writes into the table.
            FormatError: the store cannot hold a name.
        """
        ...

    def finish(self, table: str, record: TableRecord) -> TableRecord:
        """Build the index of a whole table.

        Returns:
            The record with what the store adds.
        """
        ...

    def fetch(self, table: str, record: TableRecord, numbers_S: np.ndarray) -> Rows:
        """Read rows by their ascending numbers, int64 (S,).

        Those that are missing are left out.
        """
        ...

    def search(self, table: str, record: TableRecord, queries_SD: np.ndarray, count: int) -> np.ndarray:
        """Search as readers do.

        Args:
            table: that is searched.
            record: of the table.
            queries_SD: float32 (S, D).
            count: number of nearest rows.

        Returns:
            int64 (S, count), numbers of rows, nearest first; -1 for none.
        """
        ...

    def complete(self, table: str, record: TableRecord) -> None:
        """Replace a table's record by that of a filled and checked table."""
        ...

    def served(self, collection: str) -> dict[str, str]:
        """Return the table of each alias."""
        ...

    def switch(self, collection: str, tables: Mapping[str, tuple[str, TableRecord]]) -> None:
        """Point aliases to tables, all of them at once.

        Args:
            collection: of the tables.
            tables: table and record by alias. Other aliases stay.
        """
        ...

    def drop(self, table: str, record: TableRecord) -> None:
        """Remove a table and its record, if they exist."""
        ...


class CopiedTables(Tables, Protocol):
    """Tables of a store that copies them without their rows.

    The options of its sink are a subclass of ``DeltaSinkOptions``. A copied table may have its first rows in any order.
    """

    def copy(self, table: str, record: TableRecord, base: TableRecord) -> None:
        """Record and make a copy of a table.

        It has the base's checked rows and index, and takes the place of an older one.

        Args:
            table: the new one.
            record: of it; the first of its ``bases`` is copied.
            base: record of that one.

        Raises:
            StorageError: the store cannot copy it; the table is then written whole.
        """
        ...

    def read(self, table: str, record: TableRecord) -> Iterator[tuple[np.ndarray, Rows]]:
        """Read all rows in parts, in any order.

        Each part has the numbers of its rows, int64 (N,).
        """
        ...

    def replace(self, table: str, numbers_N: np.ndarray, rows: Rows) -> None:
        """Write rows in place of those with their numbers, int64 (N,).

        They are all there when the call returns, or none of them. A second call changes nothing.

        Raises:
            FormatError: the store cannot hold a name.
        """
        ...

    def cut(self, table: str, rows: int) -> None:
        """Remove the rows whose number is ``rows`` or more."""
        ...


class Sink:
    """Base of sinks, whose only state is their class.

    Attributes:
        sink_options: declares the keys of ``options`` in an export.
    """

    sink_options: ClassVar[type[SinkOptions]] = SinkOptions

    def connect(self, destination: str, options: Any) -> AbstractContextManager[Tables]:  # noqa: ANN401 - of sink_options
        """Open a connection to a store.

        Args:
            destination: URL of the store, without credentials.
            options: of the class ``sink_options``.

        Raises:
            ConfigError: the URL is of another kind, or the client library is not installed.
            StorageError: the store cannot be reached.
        """
        raise NotImplementedError
