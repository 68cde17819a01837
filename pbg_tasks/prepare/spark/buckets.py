"""Buckets on Spark: a task writes those that it has sorted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.config.run import DELTA
from pbg_tasks.formats.names import RETURNED
from pbg_tasks.prepare.buckets import BucketReport, bucket_counts
from pbg_tasks.prepare.delta import reasons
from pbg_tasks.prepare.relations import matching, relation_rows
from pbg_tasks.prepare.spark.files import OUTCOME
from pbg_tasks.prepare.spark.ids import read_ids
from pbg_tasks.prepare.spark.reading import ReadTable
from pbg_tasks.prepare.spark.snapshot import STORED, read_hashes, read_staged
from pbg_tasks.prepare.spark.writing import WriteBuckets, WriteTable
from pbg_tasks.prepare.split import NAMES
from pbg_tasks.prepare.sql import DUCKDB
from pbg_tasks.prepare.sql import delta as delta_text
from pbg_tasks.prepare.sql import edges as text
from pbg_tasks.prepare.sql import split as split_text
from pbg_tasks.prepare.sql.spark import SPARK

if TYPE_CHECKING:
    from collections.abc import Callable

    from pbg_tasks.config import GraphSpec
    from pbg_tasks.prepare.delta import Delta
    from pbg_tasks.prepare.spark.files import Destination, StoredFile, StoredFiles
    from pbg_tasks.prepare.spark.session import Tables

_PAIRS = {"least_key": "string", "greatest_key": "string"}
_DRAWN = (
    "rel int, word long, lhs_type string, rhs_type string, lhs string, rhs string, weight float, candidate int, "
    "rel_name string, lhs_key string, rhs_key string"
)
_PAIRS_SCHEMA = "least_key string, greatest_key string"


def write_buckets(
    tables: Tables,
    spec: GraphSpec,
    staged: StoredFiles,
    *,
    entities: StoredFiles,
    relations: list[str] | None,
    previous: StoredFiles | None,
    delta: Delta[StoredFiles] | None,
    destination: Destination,
    check: Callable[[BucketReport], None],
) -> tuple[BucketReport, dict[str, StoredFile]]:
    """Split the snapshot's edges, and write every bucket, empty ones too.

    Args:
        tables: of the task.
        spec: of the graph.
        staged: rows of the snapshot.
        entities: their ids.
        relations: names by id, where they come from the data.
        previous: files of the release this run continues, with the pairs that may not be held out.
        delta: chooses the training edges that are also written to the folder ``DELTA``; None: there is none.
        destination: of the files.
        check: may refuse the report before a file is written.

    Returns:
        The report, and the files that were stored.

    Raises:
        FormatError: a file of ``entities``, ``previous`` or ``delta`` is missing or damaged.
    """
    tables.expect(staged.size)
    marked = delta is not None
    types = []
    for number, entity in enumerate(spec.model.entities):
        read_ids(tables, f"ids_of_{number}", entity, entities)
        types.append(text.entity_ends(SPARK, number, entity, f"ids_of_{number}"))
    tables.table("ends", text.ends(SPARK, types))
    drawn = text.drawn(DUCKDB, spec, matching(spec, relation_rows(spec, relations)), marked=marked)
    read_staged(tables, spec, staged, "drawn", drawn, _DRAWN + ", mark long" * marked, relations)
    tables.table("edges", text.edges(SPARK, spec, "drawn", marked=marked))
    settled = _settle(tables, spec, previous)
    tables.table("placed", text.placed(SPARK, spec, marked=marked))
    counts, dropped = bucket_counts(spec, tables.rows(text.sizes("placed")), len(NAMES))
    why, chosen = None, None
    if delta is not None:
        why = _choose(tables, delta)
        chosen, _ = bucket_counts(spec, tables.rows(text.sizes("chosen")), 1)
    untrained = int(tables.rows(text.UNTRAINED)[0][0]) if text.draws(spec) else 0
    edges = dict(zip(NAMES, counts.sum(axis=(1, 2)).tolist(), strict=True))
    report = BucketReport(
        edges | {"total": int(counts.sum()) + dropped, "dropped": dropped},
        counts[split_text.TRAIN].tolist(),
        settled["held_out_pairs"],
        settled["returned_pairs"],
        untrained,
        why,
        None if chosen is None else chosen[0].tolist(),
    )
    check(report)
    returned = WriteTable(spec, [RETURNED], _PAIRS, "FROM listed ORDER BY ALL", "COMPRESSION zstd", destination)
    stored = tables.write(split_text.RETURNED, returned)
    stored |= _write(tables, spec, "placed", counts, NAMES, destination)
    if chosen is not None:
        stored |= _write(tables, spec, "chosen", chosen, (DELTA,), destination)
    return report, stored


def _choose(tables: Tables, delta: Delta[StoredFiles]) -> dict[str, int]:
    """Make the table ``chosen``, as ``prepare.delta`` does."""
    if delta.before is not None:
        read_hashes(tables, delta.before)
    tables.view("back", delta_text.back(SPARK))
    tables.table("trained", delta_text.trained(None if delta.before is None else "marks_before"))
    if delta.rule.touching is not None:
        tables.table("changed", delta_text.changed(delta.rule.touching))
    tables.table("chosen", delta_text.chosen(SPARK, delta.rule, delta.night))
    return reasons(tables.rows(delta_text.WHY))


def _settle(tables: Tables, spec: GraphSpec, previous: StoredFiles | None) -> dict[str, int]:
    if previous is None:
        tables.made("returned_before", [], _PAIRS_SCHEMA)
    else:
        read = ReadTable(previous.store, _PAIRS, {})
        tables.view("returned_before", tables.spread([previous.row(RETURNED)], STORED, read, _PAIRS_SCHEMA))
    if text.draws(spec):
        for name, query in split_text.STEPS.items():
            tables.table(name, query)
    tables.table("candidates", split_text.CANDIDATES if text.draws(spec) else split_text.no_candidates(SPARK))
    tables.view("held_out", split_text.HELD_OUT)
    ((held_out, returned),) = tables.rows(split_text.SETTLED)
    return {"held_out_pairs": int(held_out), "returned_pairs": int(returned)}


def _write(
    tables: Tables, spec: GraphSpec, table: str, counts: np.ndarray, folders: tuple[str, ...], destination: Destination
) -> dict[str, StoredFile]:
    from pyspark.sql import functions

    weighted = spec.columns.weight is not None
    query = text.files(SPARK, spec, table, "bucket", "hash")
    sort = [functions.expr(term) for term in text.order(SPARK, spec)]
    rows = tables.session.sql(query).repartition("bucket").sortWithinPartitions(*sort)
    columns = ["bucket", *text.file_columns(spec)]
    filled = {int(bucket): int(counts.flat[bucket]) for bucket in np.flatnonzero(counts)}
    write = WriteBuckets(spec, filled, folders, destination)
    stored = tables.written(rows.select(*columns).mapInArrow(write, OUTCOME))
    schema = f"bucket int, lhs long, rhs long, rel long{', weight float' if weighted else ''}"
    empty = [(bucket, *[None] * (3 + weighted)) for bucket in range(counts.size) if bucket not in filled]
    if empty:
        stored |= tables.written(tables.spread(empty, schema, write, OUTCOME, tasks=8))
    return stored
