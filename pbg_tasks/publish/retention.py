"""Retention: rules for the releases of a channel that stay.

These are the current one, the ones to which it can be rolled back, the newest, and the pinned ones.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pbg_tasks.checkpoint.manifest import encode
from pbg_tasks.config.base import Frozen
from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.errors import ConflictError
from pbg_tasks.publish.gc_holds import hold, run_with
from pbg_tasks.publish.release import served_before

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.publish.channel import Channel
    from pbg_tasks.publish.release import Release

DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """Numbers of releases that stay beside those that must.

    Attributes:
        releases: number of the newest snapshots whose releases stay. A day that is redone displaces no other day, which
            roll-backs, gates and rules of promotion need. Where all releases are of one snapshot, number of the newest
            ones.
        days: number of days within which they were published.
    """

    releases: int = 0
    days: float = 0.0


def kept(
    releases: Sequence[Release],
    published: Mapping[int, float],
    *,
    current: int | None,
    pinned: frozenset[int],
    retention: Retention,
    now: float,
) -> set[int]:
    """Return the numbers of the releases that stay.

    Args:
        releases: all of the channel, oldest number first.
        published: times of publication, in seconds, by number.
        current: number to which the channel points.
        pinned: numbers that stay for ever: pinned ones, and those that a share of another channel's keys reads.
        retention: further rules.
        now: seconds on the same clock.
    """
    by_number = {release.seq: release for release in releases}
    snapshots = sorted({release.snapshot for release in releases}, key=snapshot_order, reverse=True)
    stay = {release.seq for release in releases if release.snapshot in snapshots[: retention.releases]}
    if len(snapshots) == 1:  # of a graph that has one, or whose nights all have one name
        stay = {*[*by_number][max(len(by_number) - retention.releases, 0) :]}
    stay |= {seq for seq, moment in published.items() if moment >= now - retention.days * DAY_SECONDS}
    stay |= set(list(by_number)[-1:])  # so that no number is used twice
    return stay | (pinned & by_number.keys()) | _line(by_number, current)


def _line(by_number: Mapping[int, Release], current: int | None) -> set[int]:
    """Return the current release and those before it.

    It goes back to the first one of another snapshot, which is the target of a roll-back or a redo. Where none is left,
    no redo looks for it, and a roll-back goes to the one before.
    """
    line: list[int] = []
    release = by_number.get(current) if current is not None else None
    snapshot = release.snapshot if release else None
    while release is not None:
        line.append(release.seq)
        if release.snapshot != snapshot:
            return {*line}
        previous = by_number.get(release.previous) if release.previous is not None else None
        release = served_before(release, previous, by_number.values)
    return {*line[:2]}


class Pin(Frozen):
    """Mark that keeps a release for ever.

    Attributes:
        seq: of the release.
        run: that made it.
    """

    format: Literal[1] = 1
    seq: int
    run: str


def pin(channel: Channel, seq: int) -> Release:
    """Keep a release until it is unpinned; pinning it again changes nothing.

    Raises:
        InputError: there is no such release.
        ConflictError: it is being removed.
    """
    release = channel.release(seq)
    hold(channel.store, run_with(release.directory, release.run))
    channel.release(seq)  # read again, because it may have been removed before it was held
    with suppress(ConflictError):  # it was pinned before
        channel.store.put_new(pin_key(channel, seq), encode(Pin(seq=seq, run=release.run)))
    return release


def unpin(channel: Channel, seq: int) -> None:
    """Remove the pin of a release, so that retention applies to it."""
    channel.store.delete(pin_key(channel, seq))


def pins(channel: Channel) -> frozenset[int]:
    """Return the numbers of the pinned releases; other objects are left out."""
    listed = channel.store.list(f"channels/{channel.name}/pins/")
    names = (info.key.rpartition("/")[2].removesuffix(".json") for info in listed)
    return frozenset(int(name) for name in names if name.isdecimal())


def pin_key(channel: Channel, seq: int) -> str:
    """Return the key of a release's pin."""
    return f"channels/{channel.name}/pins/{seq:08d}.json"
