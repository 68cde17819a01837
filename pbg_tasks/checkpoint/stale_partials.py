"""Objects below ``partial/`` that no progress record names.

Gangs that were lost leave them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.checkpoint.manifest import Head, decode
from pbg_tasks.checkpoint.partial_record import PARTIAL, RECORDS, PartialRecord
from pbg_tasks.checkpoint.reader import HEAD, location
from pbg_tasks.errors import FormatError, NotFoundError
from pbg_tasks.storage.names import join

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pbg_tasks.storage import ObjectInfo, Store


def unnamed_leftovers(store: Store, prefix: str, infos: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """Return those of ``infos`` that HEAD.json does not need.

    Gangs that were lost left them.

    Args:
        store: of the checkpoint directory.
        prefix: its key.
        infos: objects below it, listed before this call. Objects of a record that is not stored yet are returned too,
            so the caller may remove only old ones.

    Raises:
        FormatError: HEAD.json or the record it names is damaged, or the record is missing.
    """
    passing = [info for info in infos if info.key.startswith((join(prefix, f"{PARTIAL}/"), join(prefix, RECORDS)))]
    if not passing:
        return []
    named = {join(prefix, name) for name in _named(store, prefix)}
    return [info for info in passing if info.key not in named]


def _named(store: Store, prefix: str) -> set[str]:
    """Return the record in HEAD.json and the objects that the record names.

    A gang at work may replace the record between the two reads: then HEAD.json names the next.
    """
    missing = None
    while (name := _record(store, prefix)) is not None:
        source = location(store, prefix, name)
        try:
            data = store.get(join(prefix, name)).data
        except NotFoundError:
            if name == missing:  # it was not replaced, so the objects that it named are unknown
                raise FormatError(f"{source}: missing, although {HEAD} names it; restore it") from None
            missing = name
        else:
            return {name, *decode(PartialRecord, data, source=source).names}
    return set()


def _record(store: Store, prefix: str) -> str | None:
    """Return the name of the record in HEAD.json.

    None is returned when HEAD.json names none, or does not exist.
    """
    try:
        data = store.get(join(prefix, HEAD)).data
    except NotFoundError:
        return None
    head = decode(Head, data, source=location(store, prefix, HEAD))
    return None if head.progress is None else head.progress.name
