"""Skips: marks that a chain of nights continues without a snapshot.

A gate refused the snapshot, or a user skipped it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from pbg_tasks.checkpoint.manifest import decode, encode
from pbg_tasks.config.base import Frozen
from pbg_tasks.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from pbg_tasks.publish.channel import Channel


class Skipped(Frozen):
    """Mark that a chain continues without a snapshot, with the reason."""

    format: Literal[1] = 1
    snapshot: str
    reason: str


def skip(channel: Channel, snapshot: str, reason: str, *, since: float = 0.0) -> None:
    """Let later nights go on without a snapshot; the first reason stays.

    Args:
        channel: of the nights.
        snapshot: its key.
        reason: of the skip.
        since: when the snapshot was last planned, in seconds since 1970 by the store's clock; an earlier skip is
            replaced.
    """
    earlier = channel.store.head(_key(channel, snapshot))
    if earlier is None or (earlier.modified or 0.0) < since:
        document = encode(Skipped(snapshot=snapshot, reason=reason))
        with suppress(ConflictError):
            channel.store.swap(_key(channel, snapshot), document, expected=earlier)


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
    """Return the time of a snapshot's skip, by the store's clock.

    None is returned where it is not skipped.
    """
    decided = channel.store.head(_key(channel, snapshot))
    return None if decided is None else decided.modified or 0.0


def why_skipped(channel: Channel, snapshot: str, *, since: float = 0.0) -> str | None:
    """Return the reason of a snapshot's skip; None without one.

    Args:
        channel: of the nights.
        snapshot: its key.
        since: time before which a skip does not count, in seconds since 1970 by the store's clock.
    """
    decided = channel.store.head(_key(channel, snapshot))
    if decided is None or (decided.modified or 0.0) < since:
        return None
    return _read(channel, decided.key)


def skipped(channel: Channel) -> dict[str, str]:
    """Return the reasons of the channel's skips, by snapshot."""
    prefix = f"channels/{channel.name}/skipped/"
    keys = [info.key for info in channel.store.list(prefix)]
    return {key.removeprefix(prefix).removesuffix(".json"): reason for key in keys if (reason := _read(channel, key))}


def _read(channel: Channel, key: str) -> str | None:
    try:
        data = channel.store.get(key).data
    except NotFoundError:
        return None
    return decode(Skipped, data, source=f"{channel.store.url}/{key}").reason


def _key(channel: Channel, snapshot: str) -> str:
    return f"channels/{channel.name}/skipped/{snapshot}.json"
