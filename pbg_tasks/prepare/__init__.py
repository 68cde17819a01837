"""Preparation of a snapshot for training, in four steps.

The snapshot is validated, entities get their ids, edges are held out, and the others are written by partition.
"""

from __future__ import annotations

from pbg_tasks.prepare.buckets import BucketReport, write_buckets
from pbg_tasks.prepare.comparison import changed_columns, degree_distance, volumes
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.counting import SnapshotCounts, count_snapshot
from pbg_tasks.prepare.data_gate import Difference, judge_entities, judge_snapshot
from pbg_tasks.prepare.difference import EDGE_HASHES, EdgeChanges
from pbg_tasks.prepare.ids import (
    EntityReport,
    Minimum,
    assign_ids,
    entity_ids_file_name,
    partition_of,
    write_known,
)
from pbg_tasks.prepare.moved_rows import MovedRows
from pbg_tasks.prepare.reassignment import Matching, Places, Reassignment, follow, kept_and_gone
from pbg_tasks.prepare.snapshot import STAGED, StagedFiles, open_staged, stage_snapshot
from pbg_tasks.prepare.validate import NoEdgesError, SnapshotReport, check_rows, validate_snapshot

__all__ = [
    "EDGE_HASHES",
    "STAGED",
    "BucketReport",
    "Difference",
    "EdgeChanges",
    "EntityReport",
    "Matching",
    "Minimum",
    "MovedRows",
    "NoEdgesError",
    "Places",
    "Reassignment",
    "SnapshotCounts",
    "SnapshotReport",
    "StagedFiles",
    "assign_ids",
    "changed_columns",
    "check_rows",
    "connect",
    "count_snapshot",
    "degree_distance",
    "entity_ids_file_name",
    "follow",
    "judge_entities",
    "judge_snapshot",
    "kept_and_gone",
    "open_staged",
    "partition_of",
    "stage_snapshot",
    "validate_snapshot",
    "volumes",
    "write_buckets",
    "write_known",
]
