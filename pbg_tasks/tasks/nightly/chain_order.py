"""Order of a chain: the release a night continues, and its turn.

The order follows from the store alone. The night before is that of the newest older snapshot at the spec's location. It
has finished once it was released, refused by a gate, or skipped by a user; a refused or skipped night that was planned
again since has to finish once more. So the order holds for any planner (a schedule, a backfill with several runs at
once, a user), without planners knowing of each other. It does not hold where released days are redone, because the
store has no sign that they will be.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.errors import ConfigError, InputError, OutOfTurnError
from pbg_tasks.publish.skips import skipped, when_skipped
from pbg_tasks.tasks.approval import under_way

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pbg_tasks.config.graph import Snapshots
    from pbg_tasks.config.nights import Nights
    from pbg_tasks.publish import Channel, Release


def release_to_continue(channel: Channel, nights: Nights, snapshots: Snapshots, snapshot: str) -> Release | None:
    """Return the release a night begins with; None when it begins anew.

    Raises:
        OutOfTurnError: the night before has not finished.
        ConfigError: the chain begins later, or the location lists the snapshot's files as another one.
    """
    if nights.walk == "independent":
        return None
    if nights.first is not None and snapshot_order(snapshot) < snapshot_order(nights.first):
        raise ConfigError(f"snapshot {snapshot!r} comes before nights.first, {nights.first!r}, which begins the chain")
    listed = _check_listed(snapshots, snapshot)
    release = channel.before(snapshot)
    if release is None and nights.first is None:
        return None  # this night begins the chain
    older = snapshots_before(snapshots, snapshot, listed)
    before = next(iter(older), None)
    if before is None or (nights.first is not None and snapshot_order(before) < snapshot_order(nights.first)):
        return release
    if not (release is not None and release.snapshot == before) and not has_finished(channel, before):
        begin = max(snapshot_order(key) for key in (release and release.snapshot, nights.first) if key)
        due = [key for key in older if snapshot_order(key) >= begin]
        raise OutOfTurnError(
            f"snapshot {snapshot!r} continues that of {before!r}, of which channel {channel.name!r} has no release; "
            f"{_to_run_first(channel, due)}, or go on without {before!r}: `pbg skip SPEC {before}`"
        )
    return channel.before(snapshot)  # read again, because the night before may have been published meanwhile


def _check_listed(snapshots: Snapshots, snapshot: str) -> list[str] | None:
    """Refuse a snapshot whose files are listed as another one.

    Returns:
        The keys of the location; None where it can list no snapshot as another.

    Raises:
        ConfigError: they are, so that the order of nights would be one of other keys.
    """
    from pbg_tasks.prepare.sources import lists_files, snapshot_keys, snapshot_source

    name = snapshots.location.partition("{snapshot}")[2].partition("/")[0]
    if not (set("*?[") & set(name) and lists_files(snapshot_source(snapshots))):
        return None
    keys = snapshot_keys(snapshots)
    other = next((key for key in keys if snapshot.startswith(key)), None)
    if snapshot not in keys and other is not None:
        raise ConfigError(
            f"snapshots.location {snapshots.location!r}: the files of snapshot {snapshot!r} are listed as {other!r}, "
            "because a key ends at the first place where the rest of the name fits; give each snapshot a folder, or "
            "let a character follow {snapshot} that none of the keys holds, as in {snapshot}_*.csv"
        )
    return keys


def _to_run_first(channel: Channel, due: Sequence[str]) -> str:
    """Return which of the nights before one comes first, in words.

    Args:
        channel: of the nights.
        due: their snapshots, newest first, of which the first one is open.
    """
    released, marked = {each.snapshot for each in channel.releases()}, skipped(channel)
    left = list(
        takewhile(lambda key: key not in released and (key not in marked or not has_finished(channel, key)), due)
    )
    return "run it first" if len(left) <= 1 else f"{len(left)} nights are open before it: run {left[-1]!r} first"


def snapshot_before(snapshots: Snapshots, snapshot: str) -> str | None:
    """Return the newest older snapshot at the spec's location.

    None is returned without one, and where snapshots of a package's format are not listed.
    """
    return next(iter(snapshots_before(snapshots, snapshot)), None)


def snapshots_before(snapshots: Snapshots, snapshot: str, listed: list[str] | None = None) -> list[str]:
    """Return the older snapshots at the spec's location, newest first.

    None are returned where snapshots of a package's format are not listed.

    Args:
        snapshots: of the spec.
        snapshot: key of the later one.
        listed: keys of the location; None: they are listed here.
    """
    # Tasks that compare releases need other parts of this module, and none of what reads snapshots.
    from pbg_tasks.prepare.sources import lists_keys, snapshot_keys, snapshot_source

    if not lists_keys(snapshot_source(snapshots)):
        return []  # the channel alone has the order
    keys = snapshot_keys(snapshots) if listed is None else listed
    older = [key for key in keys if snapshot_order(key) < snapshot_order(snapshot)]
    return sorted(older, key=snapshot_order, reverse=True)


def has_finished(channel: Channel, snapshot: str) -> bool:
    """Whether a night was released, refused or skipped.

    A finished night keeps no later one waiting; it counts as finished also if its release was rolled back. A refusal
    does not count any more once the night is planned again, also if it comes after that plan: the later nights would
    only end in a conflict with the newer run.
    """
    since = when_skipped(channel, snapshot)
    if since is not None:
        again = under_way(channel.store, lambda key: key == snapshot, below=f"runs/{snapshot}-", planned_after=since)
        if not any(night.spec.graph.channel == channel.name for night in again):
            return True
    released = (each for each in channel.releases(newest_first=True) if each.snapshot == snapshot)
    return any(not _is_pending(channel, each) for each in released)


def _is_pending(channel: Channel, release: Release) -> bool:
    """Whether the channel is yet to point to a recorded release.

    Its publication is under way, or was killed and goes on when its task is tried again. A night that came late is
    recorded only, since the channel served a later snapshot by then.
    """
    pointer = channel.current()
    highest = 0 if pointer.info is None else pointer.highest
    if highest is None or release.seq <= highest:
        return False
    try:
        then = None if release.previous is None else channel.release(release.previous)
    except InputError:  # removed
        return False
    return then is None or snapshot_order(then.snapshot) <= snapshot_order(release.snapshot)
