"""Checkpoint directories: claim, commit, resume and preservation of versions."""

from __future__ import annotations

from pbg_tasks.checkpoint.best import open_best
from pbg_tasks.checkpoint.contents import Names, check_rows, checkpoint_names
from pbg_tasks.checkpoint.live import LiveMirror, watch_progress
from pbg_tasks.checkpoint.manifest import Head, Iteration, Manifest, ObjectRecord
from pbg_tasks.checkpoint.partial_record import (
    EdgeChunkRecord,
    LeaseRecord,
    PartialObjects,
    PartialRecord,
    StoredObject,
)
from pbg_tasks.checkpoint.plain import PlainFiles, open_directory
from pbg_tasks.checkpoint.preserve import PreservedManifest, is_preserved, open_preserved, preserve, preserved_prefix
from pbg_tasks.checkpoint.reader import CheckpointFiles, VerifiedFiles, open_committed
from pbg_tasks.checkpoint.stats import StatsMirror
from pbg_tasks.checkpoint.writer import CheckpointWriter, claim

__all__ = [
    "CheckpointFiles",
    "CheckpointWriter",
    "EdgeChunkRecord",
    "Head",
    "Iteration",
    "LeaseRecord",
    "LiveMirror",
    "Manifest",
    "Names",
    "ObjectRecord",
    "PartialObjects",
    "PartialRecord",
    "PlainFiles",
    "PreservedManifest",
    "StatsMirror",
    "StoredObject",
    "VerifiedFiles",
    "check_rows",
    "checkpoint_names",
    "claim",
    "is_preserved",
    "open_best",
    "open_committed",
    "open_directory",
    "open_preserved",
    "preserve",
    "preserved_prefix",
    "watch_progress",
]
