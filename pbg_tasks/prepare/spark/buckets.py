"""Buckets on Spark: a task writes those that it has sorted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.formats.names import RETURNED
from pbg_tasks.prepare.buckets import BucketReport
from pbg_tasks.prepare.spark.files import OUTCOME
from pbg_tasks.prepare.spark.ids import make_relations, read_ids
from pbg_tasks.prepare.spark.reading import ReadTable
from pbg_tasks.prepare.spark.snapshot import STORED, read_staged
from pbg_tasks.prepare.spark.writing import WriteBuckets, WriteTable
from pbg_tasks.prepare.split import NAMES, TRAIN
from pbg_tasks.prepare.sql import edges as text
from pbg_tasks.prepare.sql import split as split_text
from pbg_tasks.prepare.sql.spark import SPARK

if TYPE_CHECKING:
    from collections.abc import Callable

    from pbg_tasks.config import GraphSpec
    from pbg_tasks.prepare.spark.files import Destination, StoredFile, StoredFiles
    from pbg_tasks.prepare.spark.session import Tables

_PAIRS = {"least_key": "string", "greatest_key": "string"}
_PAIRS_SCHEMA = "least_key string, greatest_key string"


def write_buckets(
    tables: Tables,
    spec: GraphSpec,
    staged: StoredFiles,
    *,
    entities: StoredFiles,
    relations: list[str] | None,
    previous: StoredFiles | None,
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
        destination: of the files.
        check: may refuse the report before a file is written.

    Returns:
        The report, and the files that were stored.

    Raises:
        FormatError: a file of ``entities`` or ``previous`` is missing or damaged.
    """
    read_staged(tables, spec, staged)
    matches = make_relations(tables, spec, relations)
    types = []
    for number, entity in enumerate(spec.model.entities):
        read_ids(tables, f"ids_of_{number}", entity, entities)
        types.append(text.entity_ends(SPARK, number, entity, f"ids_of_{number}"))
    tables.table("ends", text.ends(SPARK, types))
    tables.table("edges", text.edges(SPARK, spec, matches, marked=False))
    settled = _settle(tables, spec, previous)
    tables.table("placed", text.placed(SPARK, spec, marked=False))
    found = {bucket: int(count) for bucket, count in tables.rows("SELECT bucket, count(*) FROM placed GROUP BY bucket")}
    dropped = found.pop(None, 0)
    counts = np.zeros((len(NAMES), spec.model.partitions("lhs"), spec.model.partitions("rhs")), np.int64)
    for bucket, count in found.items():
        counts.flat[bucket] = count
    untrained = int(tables.rows(text.UNTRAINED)[0][0]) if text.draws(spec) else 0
    edges = dict(zip(NAMES, counts.sum(axis=(1, 2)).tolist(), strict=True))
    report = BucketReport(
        edges | {"total": int(counts.sum()) + dropped, "dropped": dropped},
        counts[TRAIN].tolist(),
        settled["held_out_pairs"],
        settled["returned_pairs"],
        untrained,
    )
    check(report)
    returned = WriteTable(spec, RETURNED, _PAIRS, "FROM listed ORDER BY ALL", "COMPRESSION zstd", destination)
    stored = tables.one_file(split_text.RETURNED, returned)
    return report, stored | _write(tables, spec, found, counts.size, destination)


def _settle(tables: Tables, spec: GraphSpec, previous: StoredFiles | None) -> dict[str, int]:
    if previous is None:
        tables.made("returned_before", [], _PAIRS_SCHEMA)
    else:
        read = ReadTable(previous.store, _PAIRS, {})
        tables.view("returned_before", tables.spread([previous.row(RETURNED)], STORED, read, _PAIRS_SCHEMA))
    tables.table("candidates", split_text.candidates() if text.draws(spec) else split_text.no_candidates(SPARK))
    tables.view("held_out", split_text.HELD_OUT)
    ((held_out, returned),) = tables.rows(split_text.SETTLED)
    return {"held_out_pairs": int(held_out), "returned_pairs": int(returned)}


def _write(
    tables: Tables, spec: GraphSpec, counts: dict[int, int], buckets: int, destination: Destination
) -> dict[str, StoredFile]:
    weighted = spec.columns.weight is not None
    sort = text.order(SPARK, spec)
    query = f"{text.files(SPARK, spec, 'placed', 'bucket')} DISTRIBUTE BY bucket SORT BY {sort}"
    write = WriteBuckets(spec, counts, destination)
    stored = tables.written(tables.session.sql(query).mapInArrow(write, OUTCOME))
    schema = f"bucket int, lhs long, rhs long, rel long{', weight float' if weighted else ''}"
    empty = [(bucket, *[None] * (3 + weighted)) for bucket in range(buckets) if bucket not in counts]
    if empty:
        stored |= tables.written(tables.spread(empty, schema, write, OUTCOME, tasks=8))
    return stored
