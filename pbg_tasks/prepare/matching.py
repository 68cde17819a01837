"""Matching of two nights' entities by name, where ids were given anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.prepare.connection import load_table
from pbg_tasks.prepare.ids import ID_COLUMNS, YOUNGER_COLUMNS, entity_ids_file_name
from pbg_tasks.prepare.reassignment import Places

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb


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
    (row,) = connection.execute(
        """
        SELECT count(*) FILTER (ids.name IS NOT NULL), count(*) FILTER (ids.name IS NULL)
        FROM known LEFT JOIN (SELECT name FROM ids WHERE unseen = 0) AS ids USING (name) WHERE known.unseen = 0
        """
    ).fetchall()
    return {"kept": row[0], "gone": row[1]}
