"""Removal of uploads in parts that a killed writer left open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.errors import StorageError
from pbg_tasks.progress import say
from pbg_tasks.storage.names import join

if TYPE_CHECKING:
    from pbg_tasks.storage.base import Store

GRACE_SECONDS = 86_400.0
"""Age from which on an upload is ended. A younger one stays: another writer may be at work below the same directory."""


def end_old_uploads(store: Store, directory: str, *, written: str) -> None:
    """End the uploads below a directory that are a day old.

    Within a graph's store ``pbg gc`` does so. Where a store refuses, or cannot list uploads, that is reported and is no
    error.

    Args:
        store: of the directory.
        directory: key of it, empty for the store's root.
        written: key of an object that the caller has just written; its date shows the time by the store's clock.
    """
    try:
        there = store.head(written)
        if there is not None and there.modified is not None:
            store.abort_uploads(join(directory, ""), before=there.modified - GRACE_SECONDS)
    except StorageError as error:
        say(f"uploads below {store.url}/{directory} that never ended were left for the store to remove: {error}")
