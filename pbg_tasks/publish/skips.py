"""Skips: marks that a chain of nights continues without a snapshot.

A gate refused the snapshot, or a user skipped it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Literal

from pbg_tasks.checkpoint.manifest import encode, find_document
from pbg_tasks.config.base import Growing
from pbg_tasks.errors import ConflictError

if TYPE_CHECKING:
    from pbg_tasks.publish.channel import Channel
    from pbg_tasks.storage.base import ObjectInfo


class Skipped(Growing):
    """Mark that a chain continues without a snapshot, with the reason.

    Attributes:
        snapshot: its key.
        reason: of the skip.
        planned: when the run that was refused was last planned, in seconds since 1970 by the store's clock. The mark
            does not count for runs that were planned later, however late the refusal came. None for a user's skip,
            which counts for all runs that were planned before it.
    """

    later_keys: ClassVar[tuple[str, ...]] = ("planned",)

    format: Literal[1] = 1
    snapshot: str
    reason: str
    planned: float | None = None


def skip(channel: Channel, snapshot: str, reason: str, *, planned: float | None = None) -> None:
    """Let later nights go on without a snapshot.

    The first reason stays, unless it is that of a run which was planned earlier.

    Args:
        channel: of the nights.
        snapshot: its key.
        reason: of the skip.
        planned: when the run that was refused was last planned, in seconds since 1970 by the store's clock; None: the
            skip counts for all runs that were planned before it.
    """
    earlier = _find(channel, snapshot)
    if earlier is None or (planned is not None and earlier[1] < planned):
        document = encode(Skipped(snapshot=snapshot, reason=reason, planned=planned))
        with suppress(ConflictError):
            channel.store.swap(_key(channel, snapshot), document, expected=earlier and earlier[2])


def skip_anew(channel: Channel, snapshot: str, reason: str | None) -> None:
    """Let later nights go on without a snapshot from now on.

    It also counts if the snapshot was tried again after an earlier skip.

    Args:
        channel: of the nights.
        snapshot: its key.
        reason: of the skip; None: that of an earlier skip, if there was one.
    """
    reason = reason or why_skipped(channel, snapshot) or "skipped by hand"
    channel.store.put(_key(channel, snapshot), encode(Skipped(snapshot=snapshot, reason=reason)))


def when_skipped(channel: Channel, snapshot: str) -> float | None:
    """Return the time up to which plans of a snapshot are skipped.

    In seconds since 1970, by the store's clock: of a user's skip its own date, of a refusal that of the refused run's
    plan. None is returned where the snapshot is not skipped.
    """
    found = _find(channel, snapshot)
    return None if found is None else found[1]


def is_skipped_by_user(channel: Channel, snapshot: str) -> bool:
    """Whether a user skipped a snapshot.

    A refusal that an earlier version of this package stored counts as such a skip.
    """
    found = _find(channel, snapshot)
    return found is not None and found[0].planned is None


def why_skipped(channel: Channel, snapshot: str, *, since: float = 0.0) -> str | None:
    """Return the reason of a snapshot's skip; None without one.

    Args:
        channel: of the nights.
        snapshot: its key.
        since: when a run was planned, in seconds since 1970 by the store's clock; a skip that does not count for it is
            left out.
    """
    found = _find(channel, snapshot)
    return None if found is None or found[1] < since else found[0].reason


def skipped(channel: Channel) -> dict[str, str]:
    """Return the reasons of the channel's skips, by snapshot."""
    prefix = f"channels/{channel.name}/skipped/"
    keys = [info.key.removeprefix(prefix).removesuffix(".json") for info in channel.store.list(prefix)]
    return {key: found[0].reason for key in keys if (found := _find(channel, key)) is not None}


def _find(channel: Channel, snapshot: str) -> tuple[Skipped, float, ObjectInfo] | None:
    """Return a snapshot's mark, its time and its object.

    The mark counts for runs that were planned up to that time.
    """
    if (there := find_document(Skipped, channel.store, _key(channel, snapshot))) is None:
        return None
    mark, info = there
    return mark, (info.modified or 0.0) if mark.planned is None else mark.planned, info


def _key(channel: Channel, snapshot: str) -> str:
    return f"channels/{channel.name}/skipped/{snapshot}.json"
