"""Snapshot sources by name: built in, or of installed packages."""

from __future__ import annotations

from contextlib import nullcontext
from copy import copy
from functools import cache
from typing import TYPE_CHECKING

import duckdb

from pbg_tasks.config.base import Options, parse
from pbg_tasks.config.registry import SOURCES
from pbg_tasks.plugins import AT_WORK
from pbg_tasks.prepare.sources.arrow import ArrowSource
from pbg_tasks.prepare.sources.base import Layout, SnapshotSource
from pbg_tasks.prepare.sources.parquet import ParquetSource
from pbg_tasks.prepare.sources.text import TextSource

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pbg_tasks.config import Snapshots

__all__ = ["ArrowSource", "Layout", "Options", "SnapshotSource", "blamed", "lists_files", "snapshot_source"]

_BUILT_IN: dict[str, SnapshotSource] = {"parquet": ParquetSource(), "csv": TextSource(), "tsv": TextSource()}


def snapshot_source(snapshots: Snapshots) -> SnapshotSource:
    """Return the source of a spec's snapshots, with its options.

    Raises:
        ConfigError: there is none, it has no such option, or its package is at fault.
    """
    name = snapshots.format
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    source = copy(_installed(name))
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
