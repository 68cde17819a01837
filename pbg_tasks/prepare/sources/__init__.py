"""Snapshot sources by name: built in, or of installed packages."""

from __future__ import annotations

import os
from contextlib import nullcontext
from copy import copy
from functools import cache
from typing import TYPE_CHECKING

import duckdb

from pbg_tasks.config.base import Options, parse
from pbg_tasks.config.registry import SOURCES
from pbg_tasks.errors import ConfigError
from pbg_tasks.plugins import AT_WORK
from pbg_tasks.prepare.sources.arrow import ArrowSource
from pbg_tasks.prepare.sources.base import Layout, Share, SnapshotSource
from pbg_tasks.prepare.sources.changes import ChangesSource
from pbg_tasks.prepare.sources.delta import DeltaSource
from pbg_tasks.prepare.sources.iceberg import IcebergSource
from pbg_tasks.prepare.sources.parquet import ParquetSource
from pbg_tasks.prepare.sources.text import TextSource

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from pbg_tasks.config import Snapshots

__all__ = [
    "ArrowSource",
    "Layout",
    "Options",
    "Share",
    "SnapshotSource",
    "blamed",
    "lists_files",
    "lists_keys",
    "snapshot_keys",
    "snapshot_source",
]

_BUILT_IN: dict[str, SnapshotSource] = {
    "parquet": ParquetSource(),
    "csv": TextSource(),
    "tsv": TextSource(),
    "iceberg": IcebergSource(),
    "delta": DeltaSource(),
    "changes": ChangesSource(),
}


def snapshot_source(snapshots: Snapshots) -> SnapshotSource:
    """Return the source of a spec's snapshots, with its options.

    Raises:
        ConfigError: there is none, it has no such option, or its package is at fault.
    """
    name = snapshots.format
    source = copy(_BUILT_IN[name] if name in _BUILT_IN else _installed(name))
    if name in _BUILT_IN:
        source.options = parse(source.read_options, snapshots.options, source=f"snapshots.options of format {name}")
        return source
    with SOURCES.blamed(name):
        source.options = parse(source.read_options, snapshots.options, source=f"snapshots.options of format {name}")
    return source


@cache
def _installed(name: str) -> SnapshotSource:
    return SOURCES.load(name, SnapshotSource)


def blamed(name: str) -> AbstractContextManager[None]:
    """Report errors of a package's source with its entry point.

    Errors of bad input, of stores and of DuckDB stay as they are.

    Raises:
        ConfigError: the source failed; the message names source, entry point and package.
    """
    if name in SOURCES.built_in:
        return nullcontext()
    return SOURCES.blamed(name, passing=(*AT_WORK, duckdb.Error))


def lists_files(source: SnapshotSource) -> bool:
    """Return whether a source's parts are the files at its location."""
    return type(source).parts is SnapshotSource.parts


def lists_keys(source: SnapshotSource) -> bool:
    """Return whether a source lists the snapshots at a location."""
    return lists_files(source) or type(source).keys is not SnapshotSource.keys


def snapshot_keys(snapshots: Snapshots, environment: Mapping[str, str] = os.environ) -> list[str]:
    """List the keys of a spec's snapshots.

    Raises:
        ConfigError: snapshots of this format are not listed, or its package is at fault.
        AccessError: reading is not permitted.
        StorageError: the store cannot be reached.
    """
    source = snapshot_source(snapshots)
    if not lists_keys(source):
        raise ConfigError(f"{snapshots.location}: snapshots of format {snapshots.format} cannot be listed; name one")
    with blamed(snapshots.format):
        return source.keys(snapshots.location, environment)
