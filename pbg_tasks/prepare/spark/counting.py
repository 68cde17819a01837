"""Counts of a snapshot on Spark, before its validation.

They are those of ``prepare.counting``.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.prepare.bucket_sample import SAMPLE, BucketSample
from pbg_tasks.prepare.counting import SnapshotCounts, counts_of
from pbg_tasks.prepare.relations import matching, relation_rows
from pbg_tasks.prepare.spark.files import Outcome, raise_first
from pbg_tasks.prepare.spark.reading import FITTING, LISTED, ReadFitting
from pbg_tasks.prepare.spark.snapshot import listed
from pbg_tasks.prepare.sql import DUCKDB
from pbg_tasks.prepare.sql.spark import SPARK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pbg_tasks.config import GraphSpec, SnapshotFile
    from pbg_tasks.prepare.spark.session import Tables

_COUNTS = """
    SELECT type, length(bin(times)) - 1 AS doublings, count(number), CAST(sum(times) AS BIGINT)
    FROM (
        SELECT type, number, count(*) AS times
        FROM (
            SELECT lhs_type AS type, lhs AS number FROM fitting UNION ALL SELECT rhs_type, rhs FROM fitting
            UNION ALL SELECT CAST(NULL AS INTEGER), rel FROM fitting
        )
        GROUP BY type, number
    )
    GROUP BY type, length(bin(times)) - 1
"""


def count_snapshot(tables: Tables, spec: GraphSpec, files: Sequence[SnapshotFile]) -> SnapshotCounts:
    """Count a snapshot before its validation.

    Its files are read once. Executors keep some 50 bytes an edge; the driver gets a sample.

    Raises:
        InputError: a file is missing, changed since it was planned, unreadable, or lacks a column.
    """
    tables.expect(sum(file.size for file in files))
    tables.table("fitting", tables.spread(listed(spec, files), LISTED, ReadFitting(spec, _fitting(spec)), FITTING))
    for (problem,) in tables.rows("SELECT problem FROM fitting WHERE problem IS NOT NULL LIMIT 1"):
        kind, message = json.loads(problem)
        raise_first([Outcome("", kind=kind, message=message)])
    counts = counts_of(spec, tables.rows(_COUNTS))
    if all(entity.num_partitions == 1 for entity in spec.model.entities.values()):
        return counts
    return replace(counts, sample=_sample(tables, spec, counts.edges))


def _fitting(spec: GraphSpec) -> str:
    """Return DuckDB's query of rows ``FITTING``."""
    numbers = " ".join(f"WHEN {DUCKDB.text(name)} THEN {at}" for at, name in enumerate(spec.model.entities))
    types = ", ".join(f"CASE relations.{side}_type {numbers} END AS {side}_type" for side in ("lhs", "rhs"))
    rel = DUCKDB.md5_head("raw.rel") if spec.model.relations_from_data else "NULL"
    return f"""
        SELECT {types}, {DUCKDB.md5_tail("raw.lhs")} AS lhs, {DUCKDB.md5_tail("raw.rhs")} AS rhs, {rel} AS rel,
            hash(raw.lhs, raw.rel, raw.rhs) AS drawn, hash(raw.rhs, raw.rel, raw.lhs) AS spread, NULL AS problem
        FROM raw JOIN relations ON {matching(spec, relation_rows(spec, None))}
    """


def _sample(tables: Tables, spec: GraphSpec, edges: int) -> BucketSample:
    every = max(1, math.ceil(edges / SAMPLE))
    found = tables.session.sql(
        f"""
        SELECT CAST(lhs_type AS BIGINT) AS lhs_type, CAST(rhs_type AS BIGINT) AS rhs_type, lhs, rhs, spread FROM fitting
        WHERE lhs IS NOT NULL AND rhs IS NOT NULL AND {SPARK.modulo("drawn", every)} = 0
        """
    ).toArrow()
    columns = {name: found[name].to_numpy() for name in found.column_names}
    return BucketSample(
        edges,
        tuple(spec.model.entities),
        np.stack([columns["lhs_type"], columns["rhs_type"]], axis=1),
        np.stack([columns["lhs"], columns["rhs"]], axis=1).view(np.uint64),
        columns["spread"].view(np.uint64),
    )
