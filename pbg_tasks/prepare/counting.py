"""Counts of a snapshot's entities, relations and edges, before preparation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pbg_tasks.prepare.bucket_sample import BucketSample, sample_buckets
from pbg_tasks.prepare.connection import phase
from pbg_tasks.prepare.relations import make_relations
from pbg_tasks.prepare.snapshot import open_snapshot, reading
from pbg_tasks.prepare.sources import snapshot_source
from pbg_tasks.prepare.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import duckdb

    from pbg_tasks.config import GraphSpec, SnapshotFile


@dataclass(frozen=True, slots=True)
class SnapshotCounts:
    """Counts of a snapshot.

    Attributes:
        entities: distinct names, by type.
        relations: distinct relations.
        edges: rows.
        degrees: number of entities that are an end of 2**k to 2**(k+1) - 1 edges, by type, for k from 0.
        sample: of the edges, where a type is partitioned, or may be.
    """

    entities: dict[str, int]
    relations: int
    edges: int
    degrees: dict[str, list[int]]
    sample: BucketSample | None = None


def count_snapshot(
    connection: duckdb.DuckDBPyConnection, spec: GraphSpec, files: Sequence[SnapshotFile]
) -> SnapshotCounts:
    """Count a snapshot before its validation.

    Rows that no relation fits are left out. The names are read once, and once more where a type is partitioned or may
    be. Names are identified by a 64-bit hash, which is exact enough for this purpose and takes 8 bytes a name.

    Raises:
        InputError: a file is missing, changed since it was planned, unreadable, or lacks a column.
    """
    open_snapshot(connection, spec, files)
    matches = make_relations(connection, spec)
    from_data = spec.model.relations_from_data
    names = list(spec.model.entities)
    listed = ", ".join(map(quoted, names))
    lhs_type, rhs_type = (
        f"(list_position([{listed}], relations.{side}_type) - 1)::USMALLINT AS {side}_type" for side in ("lhs", "rhs")
    )
    relation = "hash(raw.rel)" if from_data else "NULL"
    columnar = snapshot_source(spec.snapshots).columnar
    # Relations among the names take a quarter more time than alone, but a second scan of text would take more still.
    more_types, more_numbers = ("", "") if columnar else (", NULL", ", rel")
    # Types are grouped by their number: text as part of the key would take a quarter more time.
    with phase(connection, "count entities"), reading(files):
        rows = connection.execute(
            f"""
            WITH fitting AS (
                SELECT {lhs_type}, {rhs_type}, hash(raw.lhs) AS lhs, hash(raw.rhs) AS rhs, {relation} AS rel
                FROM raw JOIN relations ON {matches}
            ),
            numbered AS (
                SELECT unnest([lhs_type, rhs_type{more_types}]) AS type, unnest([lhs, rhs{more_numbers}]) AS number
                FROM fitting
            ),
            counted AS (SELECT type, number, count(*) AS times FROM numbered GROUP BY ALL)
            SELECT type, floor(log2(times))::INTEGER AS doublings, count(number), sum(times)::BIGINT FROM counted
            GROUP BY type, doublings
            """
        ).fetchall()
        if columnar:
            rows += connection.execute(
                f"SELECT NULL, 0, count(DISTINCT {relation}), count(*) FROM raw JOIN relations ON {matches}"
            ).fetchall()
    counts = counts_of(spec, rows)
    if all(entity.num_partitions == 1 for entity in spec.model.entities.values()):
        return counts
    return replace(counts, sample=sample_buckets(connection, spec, files, matches, counts.edges))


def counts_of(spec: GraphSpec, rows: Iterable[tuple[Any, ...]]) -> SnapshotCounts:
    """Return the counts of rows ``(type, doublings, names, edges)``.

    Types are numbers; null is that of relations. The names have 2**doublings to 2**(doublings + 1) - 1 edges each.
    """
    found: dict[int | None, dict[int, int]] = {}
    edges = 0
    for kind, doublings, count, times in rows:
        found.setdefault(kind, {})[doublings] = count
        edges += times if kind is None else 0
    degrees = {entity: _listed(found.get(place, {})) for place, entity in enumerate(spec.model.entities)}
    from_data = spec.model.relations_from_data
    return SnapshotCounts(
        entities={entity: sum(counts) for entity, counts in degrees.items()},
        relations=sum(found.get(None, {}).values()) if from_data else len(spec.model.relations),
        edges=edges,
        degrees=degrees,
    )


def _listed(counts: dict[int, int]) -> list[int]:
    return [counts.get(place, 0) for place in range(max(counts, default=-1) + 1)]
