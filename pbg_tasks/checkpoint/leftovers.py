"""What gangs stored of an iteration and gave up: objects below ``partial/`` that no record names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.checkpoint.manifest import Head, decode
from pbg_tasks.checkpoint.progress import PARTIAL, RECORDS, Progress
from pbg_tasks.checkpoint.reader import HEAD, location
from pbg_tasks.errors import NotFoundError
from pbg_tasks.storage.names import join

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pbg_tasks.storage import ObjectInfo, Store


def unnamed_leftovers(store: Store, prefix: str, infos: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """Return those of ``infos`` that a gang left and HEAD.json does not lead to.

    Args:
        store: of the checkpoint directory.
        prefix: its key.
        infos: objects below it, listed before this call and too old to belong to a record that is still to come.

    Raises:
        FormatError: HEAD.json or the record it names is damaged.
    """
    passing = [info for info in infos if info.key.startswith((join(prefix, f"{PARTIAL}/"), join(prefix, RECORDS)))]
    if not passing:
        return []
    named = {join(prefix, name) for name in _named(store, prefix)}
    return [info for info in passing if info.key not in named]


def _named(store: Store, prefix: str) -> set[str]:
    """Return the record that HEAD.json names and the objects that the record names."""
    try:
        head = decode(Head, store.get(join(prefix, HEAD)).data, source=location(store, prefix, HEAD))
        if head.progress is None:
            return set()
        source = location(store, prefix, head.progress.name)
        record = decode(Progress, store.get(join(prefix, head.progress.name)).data, source=source)
    except NotFoundError:
        return set()
    return {head.progress.name, *record.names}
