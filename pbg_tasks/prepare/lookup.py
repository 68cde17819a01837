"""Look-ups of single entities and edges in the files of a night.

Names are found by place, places by name, and edges by hash.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.prepare.connection import loading
from pbg_tasks.prepare.difference import EDGE_HASHES
from pbg_tasks.prepare.ids import entity_ids_file_name
from pbg_tasks.prepare.sql import one_file, parquet_rows, table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    import duckdb

    from pbg_tasks.config.graph import Columns

Place = tuple[int, int]
"""Partition and offset of an entity."""


def names_at(
    connection: duckdb.DuckDBPyConnection, ids: Path, entity: str, places: Collection[Place]
) -> dict[Place, str]:
    """Return the names of a type's entities at some places.

    Args:
        connection: for the work.
        ids: directory with ids.
        entity: the type.
        places: of the entities.

    Raises:
        FormatError: the ids are missing or damaged.
    """
    path = ids / entity_ids_file_name(entity)
    with loading(path):
        found = connection.execute(
            f"""
            SELECT partition, "offset", name FROM {table(path)}
            JOIN (SELECT unnest($partition) AS partition, unnest($offset) AS "offset") USING (partition, "offset")
            """,
            {"partition": [place[0] for place in places], "offset": [place[1] for place in places]},
        ).fetchall()
    return {(partition, offset): name for partition, offset, name in found}


def places_of(
    connection: duckdb.DuckDBPyConnection, ids: Path, entity: str, names: Collection[str]
) -> dict[str, Place]:
    """Return the places of a type's entities with some names.

    Names without an entity are left out.

    Raises:
        FormatError: the ids are missing or damaged.
    """
    path = ids / entity_ids_file_name(entity)
    with loading(path):
        found = connection.execute(
            f"""
            SELECT name, partition, "offset" FROM {table(path)}
            JOIN (SELECT unnest($names) AS name) USING (name)
            """,
            {"names": list(names)},
        ).fetchall()
    return {name: (partition, offset) for name, partition, offset in found}


def edge_hash(columns: Columns, *, lhs: str, rel: str, rhs: str, lhs_type: str, rhs_type: str) -> int:
    """Return an edge's hash as in ``EDGE_HASHES``.

    It depends on the columns of the snapshot.
    """
    parts = [lhs, *([rel] if columns.rel is not None else []), rhs]
    parts += [lhs_type, rhs_type] if columns.lhs_type is not None else []
    return int.from_bytes(hashlib.md5("\x1f".join(parts).encode(), usedforsecurity=False).digest()[:8], "little")


def hashes_among(connection: duckdb.DuckDBPyConnection, directory: Path, hashes: Iterable[int]) -> set[int]:
    """Return those of some hashes whose edges a snapshot has.

    Args:
        connection: for the work.
        directory: with the ``EDGE_HASHES`` of the snapshot.
        hashes: to look up.

    Raises:
        FormatError: the file is missing or damaged.
    """
    path = directory / EDGE_HASHES
    with loading(path):
        found = connection.execute(
            f"""
            SELECT hash FROM {table(path)}
            SEMI JOIN (SELECT unnest(?::UBIGINT[]) AS hash) USING (hash)
            """,
            [list(hashes)],
        ).fetchall()
    return {value for (value,) in found}


def returned_pairs(
    connection: duckdb.DuckDBPyConnection, ids: Path, returned: Path, bases: Mapping[str, np.ndarray]
) -> dict[tuple[str, str], np.ndarray]:
    """Return a night's pairs that went back to training, by other ids.

    They were drawn to be held out, and trained nevertheless. Pairs of which the other ids lack an end are left out.

    Args:
        connection: for the work.
        ids: directory with the other ids, of all types of ``bases``.
        returned: the list of the night.
        bases: int64 (P + 1,) by type, number of each partition's first entity by the other ids.

    Returns:
        By the types of the two ends, int64 (M, 2): their numbers.

    Raises:
        FormatError: a file is missing or damaged.
    """
    found = {}
    with loading(returned):
        connection.execute(
            f"""
            CREATE OR REPLACE TEMP TABLE returned AS
            SELECT split_part(least_key, chr(30), 1) AS one_type, split_part(greatest_key, chr(30), 1) AS other_type,
                substr(least_key, length(one_type) + 2) AS one, substr(greatest_key, length(other_type) + 2) AS other
            FROM {parquet_rows([one_file(returned)])}
            """
        )
    types = connection.execute("SELECT DISTINCT one_type, other_type FROM returned ORDER BY ALL").fetchall()
    for one, other in types:
        if one not in bases or other not in bases:
            continue
        with loading(ids):
            rows = connection.execute(
                f"""
                SELECT a.partition::BIGINT AS p, a."offset" AS i, b.partition::BIGINT AS q, b."offset" AS j
                FROM returned JOIN {table(ids / entity_ids_file_name(one))} a ON a.name = one
                    JOIN {table(ids / entity_ids_file_name(other))} b ON b.name = other
                WHERE one_type = ? AND other_type = ? ORDER BY ALL
                """,
                [one, other],
            ).fetchnumpy()
        found[one, other] = np.stack((bases[one][rows["p"]] + rows["i"], bases[other][rows["q"]] + rows["j"]), axis=1)
    return found
