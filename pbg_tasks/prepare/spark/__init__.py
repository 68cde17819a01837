"""Preparation on Spark: the definition of ``prepare.sql``, run by executors.

Executors read the snapshot's files and the release before, and write every file to the store themselves. The driver
gets numbers only: of files, partitions, buckets and relations, never a name of an entity or an edge.

Executors have this package and the store's credentials, as a task has. What a function here finds is that of its
neighbour on DuckDB, and the files have the same bytes.
"""

from __future__ import annotations

from pbg_tasks.prepare.spark.buckets import write_buckets
from pbg_tasks.prepare.spark.counting import count_snapshot
from pbg_tasks.prepare.spark.files import Destination, StoredFile, StoredFiles
from pbg_tasks.prepare.spark.ids import assign_ids, count_kept
from pbg_tasks.prepare.spark.session import lacking, open_tables
from pbg_tasks.prepare.spark.snapshot import staged_name, validate_snapshot

__all__ = [
    "Destination",
    "StoredFile",
    "StoredFiles",
    "assign_ids",
    "count_kept",
    "count_snapshot",
    "lacking",
    "open_tables",
    "staged_name",
    "validate_snapshot",
    "write_buckets",
]
