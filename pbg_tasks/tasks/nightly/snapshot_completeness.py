"""Completeness of a snapshot, by a marker or manifest in its folder.

A day on which nothing happened may leave a folder with no edge files in it: an empty snapshot. Without a marker or a
manifest such a folder counts as a missing snapshot.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from pbg_tasks.config.nights import MANIFEST, SUCCESS, snapshot_folder
from pbg_tasks.storage.columnar import NoFilesError, filesystem_for, list_files, read_errors
from pbg_tasks.storage.names import is_hidden

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from pbg_tasks.config.nights import Whole


def snapshot_files(
    location: str, snapshot: str, complete: Whole | None, environment: Mapping[str, str] = os.environ
) -> list[tuple[str, int, str]]:
    """List a snapshot's files; none for a whole snapshot without any.

    The list has the form of ``list_files``.

    Args:
        location: with ``{snapshot}``, as in the graph spec.
        snapshot: its key.
        complete: sign that it is whole, as in ``nights.watch``. With ``settled`` or None, the sign of a snapshot
            without files is its manifest.
        environment: settings of the location's store.

    Raises:
        NoFilesError: nothing is there.
        InputError: a file has a wildcard in its name.
        AccessError: reading is not permitted.
        StorageError: the store cannot be reached.
    """
    try:
        return list_files(location.replace("{snapshot}", snapshot), environment)
    except NoFilesError:
        if not _is_empty(location, snapshot, complete, environment):
            raise
        return []


def _is_empty(location: str, snapshot: str, complete: Whole | None, environment: Mapping[str, str]) -> bool:
    folder = snapshot_folder(location)
    if folder is None:
        return False
    # A marker may come first where files are copied in the order of their names. So it means that the folder is
    # finished only where the spec states that the producer writes it last. A manifest lists the files itself.
    sign: Literal["success", "manifest"] = "success" if complete == "success" else "manifest"
    # Before the files are listed, because a whole snapshot stays whole.
    if lacks(location, snapshot, sign, environment) is not None:
        return False
    try:
        # All names count: a folder with other files than the location asks for is not that of an empty day.
        list_files(folder.replace("{snapshot}", snapshot), environment)
    except NoFilesError:
        return True
    return False


def lacks(
    location: str, snapshot: str, complete: Literal["success", "manifest"], environment: Mapping[str, str] = os.environ
) -> str | None:
    """Return what a snapshot lacks to be whole; None if nothing.

    Args:
        location: with ``{snapshot}``, as in the graph spec.
        snapshot: its key.
        complete: sign that it is whole, as in ``nights.watch``.
        environment: settings of the location's store.

    Raises:
        AccessError: reading is not permitted.
        StorageError: the store cannot be reached.
    """
    folder = (snapshot_folder(location) or location).replace("{snapshot}", snapshot)
    filesystem = filesystem_for(folder, environment)
    marker, manifest = f"{folder}/{SUCCESS}", f"{folder}/{MANIFEST}"
    with read_errors(folder):
        if complete == "success":
            return None if filesystem.exists(marker) else f"{marker} is not there"
        try:
            asked = _sizes(filesystem.cat_file(manifest))
        except FileNotFoundError:
            return f"{manifest} is not there"
        if asked is None:
            return f"{manifest} lists no files with their sizes"
        root = filesystem._strip_protocol(folder)  # noqa: SLF001 (fsspec has no public name for it)
        found = filesystem.find(root, detail=True)
    files = {name: info for name, info in found.items() if not name.endswith("/")}  # without tools' folders in S3
    there = {name.removeprefix(f"{root}/"): info["size"] for name, info in files.items()}
    if not asked and (named := [name for name in there if not is_hidden(name)]):
        return f"{manifest} lists none of the {len(named)} files that are there"
    wrong = sorted(name for name, size in asked.items() if there.get(name) != size)
    if not wrong:
        return None
    return f"{len(wrong)} of the {len(asked)} files that {manifest} lists are not there with their sizes, as {wrong[0]}"


def _sizes(data: bytes) -> dict[str, int] | None:
    """Return the sizes of a manifest's objects.

    None for a document that is no manifest, or not finished.
    """
    try:
        objects = json.loads(data)["objects"]
        return {str(name): int(record["size"]) for name, record in objects.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
