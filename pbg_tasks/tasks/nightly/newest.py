"""Newest snapshot at a graph's location."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pbg_tasks.config.base import did_you_mean
from pbg_tasks.config.nights import key_form, snapshot_folder, snapshot_order
from pbg_tasks.errors import InputError, PbgError
from pbg_tasks.prepare.sources import lists_files, snapshot_keys, snapshot_source
from pbg_tasks.progress import say
from pbg_tasks.storage.columnar import NoFilesError
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.tasks.nightly.snapshot_completeness import lacks, snapshot_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pbg_tasks.config import GraphSpec, Snapshots
    from pbg_tasks.config.nights import Whole

_SHOWN = 5
"""Most keys that an error lists."""
_NEAR = 0.7
"""Similarity of a key that an error names as the nearest."""
_LISTINGS = 16
"""Most folders that are listed at a time."""


def newest_snapshot(graph: GraphSpec) -> str:
    """Return the key of the newest snapshot that is whole.

    Keys are ordered as nights are: numbers in them by value.

    Raises:
        InputError: there is none.
        ConfigError: snapshots of this format are not listed.
        AccessError: reading is not permitted.
        StorageError: the store cannot be reached.
    """
    location = graph.snapshots.location
    complete = graph.nights.watch.complete if graph.nights.watch is not None else "settled"
    if not (listed := lists_files(snapshot_source(graph.snapshots))):
        complete = "settled"  # a listed version of a table is whole
    newest_first = sorted(snapshot_keys(graph.snapshots), key=snapshot_order, reverse=True)
    for key in newest_first:
        if complete != "settled" and lacks(location, key, complete) is not None:
            continue
        if not listed or _has_files(location, key, complete):
            return key
        say(f"snapshot {key} is passed over: its folder has no files{' yet' if key == newest_first[0] else ''}")
    raise InputError(f"{location}: no snapshot there yet; check the location, or name a snapshot")


def keys_with_files(snapshots: Snapshots, most: int, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the keys at a location, newest first.

    Folders without files are left out. Keys beyond the ``most`` newest are not looked into.

    Raises:
        ConfigError: snapshots of this format are not listed.
        AccessError: reading is not permitted.
        StorageError: the store cannot be reached.
    """
    keys = sorted(snapshot_keys(snapshots, environment), key=snapshot_order, reverse=True)
    if not lists_files(snapshot_source(snapshots)) or snapshot_folder(snapshots.location) is None:
        return keys
    looked = in_parallel(
        lambda key: _has_files(snapshots.location, key, "settled", environment), keys[:most], _LISTINGS
    )
    return [key for key, there in zip(keys[:most], looked, strict=True) if there] + keys[most:]


def _has_files(location: str, key: str, complete: Whole, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a snapshot has files, or is whole without any."""
    try:
        snapshot_files(location, key, complete, environment)
    except NoFilesError:
        return False
    except InputError:  # a file has a name that `plan` refuses
        return True
    return True


def keys_there(snapshots: Snapshots, lacking: str) -> str:
    """Return the nearest and the newest keys, to end a sentence.

    The key of a folder without files, ``lacking``, is left out. No key is named as the nearest where others differ from
    ``lacking`` in digits alone, because then that day is missing, not misspelt.
    """
    try:
        keys = sorted({*snapshot_keys(snapshots)} - {lacking}, key=snapshot_order, reverse=True)
    except PbgError:  # the sentence has its reason already
        return ""
    if not keys:
        return ""
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    is_missing_day = key_form(lacking) in map(key_form, keys)
    near = "" if is_missing_day else did_you_mean(lacking, keys, cutoff=_NEAR)
    return f"; {f'{near} Keys' if near else 'keys'} there: {', '.join(keys[:_SHOWN])}{more}"
