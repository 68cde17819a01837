"""Claim, commit, resume and preserve: how a run's versions come to count."""

from __future__ import annotations

from pbg_tasks.checkpoint.manifest import Head, Iteration, Manifest, ObjectRecord
from pbg_tasks.checkpoint.preserve import PreservedManifest, open_preserved, preserve, preserved_prefix
from pbg_tasks.checkpoint.reader import VerifiedFiles, open_committed
from pbg_tasks.checkpoint.stats import StatsMirror
from pbg_tasks.checkpoint.writer import CheckpointWriter, claim

__all__ = [
    "CheckpointWriter",
    "Head",
    "Iteration",
    "Manifest",
    "ObjectRecord",
    "PreservedManifest",
    "StatsMirror",
    "VerifiedFiles",
    "claim",
    "open_committed",
    "open_preserved",
    "preserve",
    "preserved_prefix",
]
