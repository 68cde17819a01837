"""Kinds of edges in a snapshot that no spec describes yet."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbg_tasks.errors import InputError
from pbg_tasks.prepare.snapshot import open_snapshot, reading
from pbg_tasks.prepare.sources import snapshot_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from pbg_tasks.config import GraphSpec, SnapshotFile, Snapshots

LISTED = 200
"""Most kinds that are listed."""


@dataclass(frozen=True, slots=True)
class Kinds:
    """Kinds of a snapshot's edges; different names are counted nearly.

    Attributes:
        edges: rows.
        pairs: different pairs of entities that an edge joins, in either direction.
        listed: relation, entity types of the ends and edges, the most frequent first; empty where there are more than
            200.
        relations: different names in the column of relations.
        entities: different names, by type; by end where types are unknown.
        common: edges whose left end is the right end of an edge; 0 where types are known.
        repeated: share of edges that repeat another one.
    """

    edges: int
    pairs: int
    listed: list[tuple[str | None, str | None, str | None, int]]
    relations: int
    entities: dict[str, int]
    common: int
    repeated: float


def count_kinds(connection: duckdb.DuckDBPyConnection, spec: GraphSpec, files: Sequence[SnapshotFile]) -> Kinds:
    """Count the kinds of a snapshot's edges.

    Args:
        connection: for the work.
        spec: names the columns; its model is not used.
        files: of the snapshot.

    Raises:
        InputError: a file is unreadable, or lacks a column, or there are no rows.
    """
    open_snapshot(connection, spec, files)
    typed = spec.columns.lhs_type is not None
    by = "rel, lhs_type, rhs_type"
    left, right = ("lhs_type", "rhs_type") if typed else ("'lhs'", "'rhs'")
    with reading(files):
        (total,) = connection.execute("SELECT count(*), approx_count_distinct(rel) FROM raw").fetchall()
        listed = connection.execute(
            f"SELECT {by}, count(*) AS edges FROM raw GROUP BY ALL ORDER BY edges DESC, {by} LIMIT {LISTED + 1}"
        ).fetchall()
        counted = connection.execute(
            f"""
            SELECT kind, approx_count_distinct(name) FROM (
                SELECT {left} AS kind, lhs AS name FROM raw UNION ALL SELECT {right}, rhs FROM raw
            ) GROUP BY kind ORDER BY kind
            """
        ).fetchall()
        edge = "lhs, rel, rhs, lhs_type, rhs_type" if typed else "lhs, rel, rhs"
        ((different,),) = connection.execute(f"SELECT count(*) FROM (SELECT DISTINCT {edge} FROM raw)").fetchall()
        ends = ("lhs_type || chr(31) || lhs", "rhs_type || chr(31) || rhs") if typed else ("lhs", "rhs")
        pair = f"least({', '.join(ends)}), greatest({', '.join(ends)})"
        ((pairs,),) = connection.execute(f"SELECT count(*) FROM (SELECT DISTINCT {pair} FROM raw)").fetchall()
        common = 0
        if not typed:
            ((common,),) = connection.execute("SELECT count(*) FROM raw WHERE lhs IN (SELECT rhs FROM raw)").fetchall()
    entities = {str(kind): int(count) for kind, count in counted}
    edges, relations = map(int, total)
    if not edges:
        raise InputError(f"{files[0].uri}: the snapshot has no edges")
    repeated = 1 - int(different) / edges
    few = listed if len(listed) <= LISTED else []
    return Kinds(edges, int(pairs), few, relations, entities, int(common), repeated)


def begins_with_names(
    connection: duckdb.DuckDBPyConnection,
    snapshots: Snapshots,
    file: SnapshotFile,
    names: Sequence[str],
    first: Sequence[str],
) -> bool:
    """Return whether a file's first record reads like names of columns.

    None of its fields has a digit or comes again in its column, although other values do come again; of two columns,
    every other value has a digit, since the first edge may well be the only one of its ends.

    Args:
        connection: for the work.
        snapshots: format of the file, without a header.
        file: to look at.
        names: of its columns.
        first: fields of its first record.

    Raises:
        InputError: the file is unreadable.
    """
    if len(set(first)) < len(names) or any(not field or re.search(r"\d", field) for field in first):
        return False
    source = snapshot_source(snapshots)
    place = source.open(connection, snapshots, [file], names)[file.uri]
    with reading([file]):
        layout = source.describe(connection, snapshots, file, place)
        if layout is None:
            return False
        columns = [source.column(layout, name) for name in names]
        asked = ", ".join(
            f"count(*) FILTER ({each} = ?), count(DISTINCT {each}), count(*) FILTER (regexp_matches({each}, '[0-9]'))"
            for each in columns
        )
        found = connection.execute(
            f"SELECT count(*), {asked} FROM {source.scan(snapshots, [place], layout)}", list(first)
        ).fetchone()
    total, *counts = map(int, found or [0])
    alone = all(count == 1 for count in counts[::3])
    again = any(count < total for count in counts[1::3])
    numbered = all(count == total - 1 for count in counts[2::3])
    return alone and again and (numbered or len(names) > len(("lhs", "rhs")))


def different_values(
    connection: duckdb.DuckDBPyConnection, snapshots: Snapshots, file: SnapshotFile, names: Sequence[str]
) -> dict[str, int]:
    """Count the different values of columns of one file.

    They are returned by the name of the column.

    Raises:
        InputError: the file is unreadable.
    """
    source = snapshot_source(snapshots)
    place = source.open(connection, snapshots, [file], names)[file.uri]
    with reading([file]):
        layout = source.describe(connection, snapshots, file, place)
        if layout is None:
            return dict.fromkeys(names, 0)
        columns = ", ".join(f"count(DISTINCT {source.column(layout, name)})" for name in names)
        (row,) = connection.execute(f"SELECT {columns} FROM {source.scan(snapshots, [place], layout)}").fetchall()
    return dict(zip(names, map(int, row), strict=True))
