"""New places of rows: in other partitions, or among another night's ids.

An explicit migration reassigns ids, a night never. Where two nights gave ids anew, their entities are matched by name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pbg_tasks.errors import FormatError
from pbg_tasks.prepare.connection import load_table
from pbg_tasks.prepare.ids import ID_COLUMNS, YOUNGER_COLUMNS, entity_ids_file_name, write_ids
from pbg_tasks.prepare.sql import DUCKDB
from pbg_tasks.prepare.sql.ids import KEPT

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb
    import numpy as np

    from pbg_tasks.formats.entity_sets import EntitySet


@dataclass(frozen=True, slots=True)
class Places:
    """New places of the rows of one partition.

    Attributes:
        partition: int64 (n,), the new one of each row; -1 where the row is dropped.
        offset: int64 (n,), the row there.
    """

    partition: np.ndarray
    offset: np.ndarray


class Reassignment:
    """New ids of one entity type.

    The partition follows from the name, the order within it from the old ids. A row that stays in its partition, with
    all before it, keeps its offset.

    Args:
        connection: for the work; one reassignment at a time.
        entity: the type.
        partitions: new number of partitions.
        known: directory with its present ids.
        nights: entities that this many nights or more have not seen get no new id; None: all get one.

    Attributes:
        dropped: number of entities that get no new id.

    Raises:
        FormatError: the ids are missing or damaged, or have a name twice.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        entity: str,
        partitions: int,
        known: Path,
        *,
        nights: int | None = None,
    ) -> None:
        self._connection, self._entity = connection, entity
        self._partitions = partitions
        path = known / entity_ids_file_name(entity)
        load_table(connection, "known", ID_COLUMNS, path, younger=YOUNGER_COLUMNS)
        again = connection.execute("SELECT name FROM known GROUP BY name HAVING count(*) > 1 LIMIT 1").fetchone()
        if again is not None:
            raise FormatError(f"{path}: two entities of type {entity!r} have the name {again[0]!r}")
        connection.execute(
            f"""
            CREATE OR REPLACE TEMP TABLE moved AS
            SELECT *, row_number() OVER (PARTITION BY to_partition ORDER BY partition, "offset") - 1 AS to_offset
            FROM (
                SELECT *, if(
                    $nights IS NULL OR unseen < $nights, ({DUCKDB.md5_tail("name")} % $partitions)::BIGINT, -1
                ) AS to_partition
                FROM known
            )
            """,
            {"nights": nights, "partitions": partitions},
        )
        (row,) = connection.execute("SELECT count(*) FROM moved WHERE to_partition < 0").fetchall()
        self.dropped = int(row[0])

    def write(self, out: Path) -> list[int]:
        """Write ids, names and counts of the type.

        Returns:
            Number of entities of each new partition.
        """
        self._connection.execute(
            """
            CREATE OR REPLACE TEMP TABLE ids AS
            SELECT name, to_partition::INTEGER AS partition, to_offset AS "offset", first_seen, last_seen, unseen
            FROM moved WHERE to_partition >= 0
            """
        )
        return write_ids(self._connection, self._entity, self._partitions, out)

    def places(self, partition: int) -> Places:
        """Return the new places of a present partition's rows, by offset."""
        found = self._connection.execute(
            'SELECT to_partition, to_offset FROM moved WHERE partition = ? ORDER BY "offset"', [partition]
        ).fetchnumpy()
        return Places(found["to_partition"], found["to_offset"])


def follow(connection: duckdb.DuckDBPyConnection, entities: EntitySet, before: Path, after: Path) -> EntitySet:
    """Return the places of entities by other ids.

    Entities that the other ids lack are left out.

    Args:
        connection: for the work.
        entities: by the ids in ``before``.
        before: directory with ids.
        after: same.
    """
    partition, offset = {}, {}
    for entity in entities.partition:
        load_table(connection, "known", ID_COLUMNS, before / entity_ids_file_name(entity), younger=YOUNGER_COLUMNS)
        load_table(connection, "ids", ID_COLUMNS, after / entity_ids_file_name(entity), younger=YOUNGER_COLUMNS)
        found = connection.execute(
            """
            SELECT ids.partition::BIGINT AS partition, ids."offset"
            FROM (SELECT unnest($partition) AS partition, unnest($offset) AS "offset") AS rows
                JOIN known USING (partition, "offset") JOIN ids USING (name)
            ORDER BY ALL
            """,
            {"partition": entities.partition[entity].tolist(), "offset": entities.offset[entity].tolist()},
        ).fetchnumpy()
        if len(found["offset"]):
            partition[entity], offset[entity] = found["partition"], found["offset"]
    return replace(entities, partition=partition, offset=offset)


class Matching:
    """Places of a type's entities by other ids.

    Args:
        connection: for the work; one matching at a time.
        entity: the type.
        before: directory with its ids.
        after: directory with the other ids.

    Raises:
        FormatError: ids are missing or damaged.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, entity: str, before: Path, after: Path) -> None:
        self._connection = connection
        for table, directory in (("known", before), ("ids", after)):
            path = directory / entity_ids_file_name(entity)
            load_table(connection, table, ID_COLUMNS, path, younger=YOUNGER_COLUMNS)
        connection.execute(
            """
            CREATE OR REPLACE TEMP TABLE matched AS
            SELECT known.partition, known."offset", coalesce(ids.partition, -1)::BIGINT AS to_partition,
                coalesce(ids."offset", 0) AS to_offset
            FROM known LEFT JOIN ids USING (name)
            """
        )

    def places(self, partition: int) -> Places:
        """Return the places of a partition's rows by the other ids.

        They are in the order of the rows; -1 stands for rows whose entities the other ids lack.
        """
        found = self._connection.execute(
            'SELECT to_partition, to_offset FROM matched WHERE partition = ? ORDER BY "offset"', [partition]
        ).fetchnumpy()
        return Places(found["to_partition"], found["to_offset"])


def kept_and_gone(connection: duckdb.DuckDBPyConnection, before: Path, after: Path) -> dict[str, int]:
    """Count the entities of an earlier snapshot that another one has.

    They are matched by name.

    Args:
        connection: for the work.
        before: file with the earlier ids of one type.
        after: file with the ids of the other night.

    Returns:
        The numbers ``kept`` and ``gone``.

    Raises:
        FormatError: a file is missing or damaged.
    """
    for table, path in (("known", before), ("ids", after)):
        load_table(connection, table, ID_COLUMNS, path, younger=YOUNGER_COLUMNS)
    (row,) = connection.execute(KEPT).fetchall()
    return {"kept": row[0], "gone": row[1]}
