"""Snapshots that a chain of nights goes on without: refused by a gate, or skipped by someone."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from pbg_tasks.checkpoint.manifest import decode, encode
from pbg_tasks.config.base import Frozen
from pbg_tasks.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from pbg_tasks.publish.channel import Channel


class Skipped(Frozen):
    """Why a chain goes on without a snapshot."""

    format: Literal[1] = 1
    snapshot: str
    reason: str


def skip(channel: Channel, snapshot: str, reason: str) -> None:
    """Let the nights after a snapshot go on without it; the first reason stays."""
    with suppress(ConflictError):
        channel.store.put_new(_key(channel, snapshot), encode(Skipped(snapshot=snapshot, reason=reason)))


def skip_anew(channel: Channel, snapshot: str, reason: str | None) -> None:
    """Let the nights after a snapshot go on without it from now on, also if it was tried again after an earlier skip.

    Args:
        channel: of the nights.
        snapshot: its key.
        reason: why; None: what was said before, if anything was.
    """
    reason = reason or why_skipped(channel, snapshot) or "skipped by hand"
    channel.store.put(_key(channel, snapshot), encode(Skipped(snapshot=snapshot, reason=reason)))


def when_skipped(channel: Channel, snapshot: str) -> float | None:
    """Return since when the nights after a snapshot go on without it, by the store's clock; None where they do not."""
    decided = channel.store.head(_key(channel, snapshot))
    return None if decided is None else decided.modified or 0.0


def why_skipped(channel: Channel, snapshot: str, *, since: float = 0.0) -> str | None:
    """Return why the nights after a snapshot go on without it; None where they do not.

    Args:
        channel: of the nights.
        snapshot: its key.
        since: what was decided earlier does not count, in seconds since 1970 by the store's clock.
    """
    decided = channel.store.head(_key(channel, snapshot))
    if decided is None or (decided.modified or 0.0) < since:
        return None
    return _read(channel, decided.key)


def skipped(channel: Channel) -> dict[str, str]:
    """Return why the channel goes on without snapshots, by snapshot."""
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
