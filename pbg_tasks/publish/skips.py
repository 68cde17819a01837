"""Snapshots that a chain of nights goes on without: refused by a gate, or skipped by someone."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from pbg_tasks.checkpoint.manifest import encode
from pbg_tasks.config.base import Frozen
from pbg_tasks.errors import ConflictError

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


def is_skipped(channel: Channel, snapshot: str) -> bool:
    """Whether the nights after a snapshot go on without it."""
    return channel.store.head(_key(channel, snapshot)) is not None


def _key(channel: Channel, snapshot: str) -> str:
    return f"channels/{channel.name}/skipped/{snapshot}.json"
