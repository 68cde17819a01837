"""Which release a night continues, and whether it is its turn: the order of a chain, kept by what lies in the store.

The night before is the newest of the snapshots that lie at the spec's location and are older. It has finished once it
was released, refused by a gate, or skipped by someone; a refused or skipped night that was planned anew since is waited
for once more. So the order holds for whoever plans (a schedule, a backfill with several runs at once, a person) without
anybody knowing of anybody else. It does not hold where released days are redone: nobody knows that they will be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.errors import ConfigError, OutOfTurnError
from pbg_tasks.publish.skips import when_skipped
from pbg_tasks.storage.columnar import list_keys
from pbg_tasks.tasks.approval import under_way

if TYPE_CHECKING:
    from pbg_tasks.config.graph import Snapshots
    from pbg_tasks.config.nights import Nights
    from pbg_tasks.publish import Channel, Release


def release_to_continue(channel: Channel, nights: Nights, snapshots: Snapshots, snapshot: str) -> Release | None:
    """Return the release a night begins with; None when it begins anew.

    Raises:
        OutOfTurnError: the night before has not finished.
        ConfigError: the chain begins later.
    """
    if nights.walk == "independent":
        return None
    if nights.first is not None and snapshot_order(snapshot) < snapshot_order(nights.first):
        raise ConfigError(f"snapshot {snapshot!r} comes before nights.first, {nights.first!r}, which begins the chain")
    release = channel.before(snapshot)
    if release is None and nights.first is None:
        return None  # this night begins the chain
    before = snapshot_before(snapshots, snapshot)
    if before is None or (nights.first is not None and snapshot_order(before) < snapshot_order(nights.first)):
        return release
    if not (release is not None and release.snapshot == before) and not has_finished(channel, before):
        raise OutOfTurnError(
            f"snapshot {snapshot!r} continues that of {before!r}, of which channel {channel.name!r} has no release; "
            f"run it first, or go on without it: `pbg skip SPEC {before}`"
        )
    return release


def snapshot_before(snapshots: Snapshots, snapshot: str) -> str | None:
    """Return the key of the newest snapshot at the spec's location that is older; None when there is none."""
    older = [key for key in list_keys(snapshots.location) if snapshot_order(key) < snapshot_order(snapshot)]
    return max(older, key=snapshot_order, default=None)


def has_finished(channel: Channel, snapshot: str) -> bool:
    """Whether a night keeps none after it waiting: it was released (and perhaps rolled back), refused or skipped.

    A refusal counts no longer once the night is planned anew: those after it would only end in a conflict with it.
    """
    since = when_skipped(channel, snapshot)
    if since is not None:
        again = under_way(channel.store, lambda key: key == snapshot, below=f"runs/{snapshot}-", planned_after=since)
        if not any(night.spec.graph.channel == channel.name for night in again):
            return True
    return any(each.snapshot == snapshot for each in channel.releases(newest_first=True))
