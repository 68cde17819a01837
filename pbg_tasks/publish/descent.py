"""Descent of releases: the releases they were trained from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypedDict

from pbg_tasks.config import RunLayout
from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.errors import FormatError, NotFoundError
from pbg_tasks.storage.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.publish.channel import Channel
    from pbg_tasks.publish.release import Pointer, Release

_AT_ONCE = 16


class Way(TypedDict):
    """Origin of a release.

    ``because`` is the reason against its ancestor, ``void`` the reason against the release itself.
    """

    continues: int | None
    descends_from: int | None
    because: str | None
    void: str | None


def descent(channel: Channel, releases: Sequence[Release], pointer: Pointer) -> dict[int, Way]:
    """Return the release from which each release descends, by number.

    A release is void once its snapshot has a later release (it was redone), also where the channel was rolled back from
    that one, since the day may have been a bad one; or once the channel was rolled back from it.
    ``descends_from`` is the nearest void release among those that a release was trained from, one after the other;
    ``because`` is the reason why it is void. Both are None where there is none, and ``continues`` too. ``void`` is the
    reason why the release itself is void, None where it is not.

    Args:
        channel: of the releases.
        releases: all of the channel.
        pointer: of the channel.
    """
    numbers = {release.run: release.seq for release in releases}
    found = in_parallel(lambda release: _continued(channel, release, numbers), releases, _AT_ONCE)
    continues = dict(zip((release.seq for release in releases), found, strict=True))
    reasons = _reasons(releases, pointer)
    return {number: _way(number, continues, reasons) for number in continues}


def _continued(channel: Channel, release: Release, numbers: Mapping[str, int]) -> int | None:
    """Read the number of the release that a run continued, or None.

    The spec of a run has the number in the channel of its nights. For a release that was promoted from there, the
    number is that of the same run here, if it was promoted, too.
    """
    key = f"runs/{release.run}/{RunLayout.spec}"
    try:
        previous = json.loads(channel.store.get(key).data)["previous"]
        if previous is None:
            return None
        return int(previous["seq"]) if release.promoted is None else numbers.get(previous["run"])
    except NotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{channel.store.url}/{key}: this is no run spec ({error!r})") from None


def _reasons(releases: Sequence[Release], pointer: Pointer) -> dict[int, str]:
    """Return the reasons why releases are void, by number.

    Of later releases of a snapshot, the newest is named that the channel was not rolled back from, if there is one.
    """
    gone, ordered = rolled_back_from(releases, pointer), sorted(releases, key=lambda each: each.seq)
    newest = {each.snapshot: each for each in ordered}
    standing = {each.snapshot: each for each in ordered if each.seq not in gone}
    reasons = dict.fromkeys(gone, "rolled back")
    for release in ordered:
        stands = standing.get(release.snapshot, release).seq > release.seq
        later = (standing if stands else newest)[release.snapshot]
        if later.seq > release.seq:
            how = "published" if later.run == release.run else "redone"
            reasons[release.seq] = f"{how} as {later.seq}" + ("" if stands else " (rolled back)")
    return reasons


def rolled_back_from(releases: Sequence[Release], pointer: Pointer) -> set[int]:
    """Return the numbers of releases from which the channel was rolled back.

    Below the current release, they are those that are not on its way of previous ones. A release of an older snapshot
    than the one that was served when it came was never served, so it was not left. Nor was one whose run has another
    release on the way, or a later one that was not left: it was recorded, and the run published only after the channel
    had moved. Below a release whose previous one is removed or not known, nothing is known.
    """
    if pointer.release is None:
        return set()
    by_number = {release.seq: release for release in releases}
    here: Release | None = pointer.release
    way, runs = list[int](), set[str]()
    while here is not None:
        way.append(here.seq)
        runs.add(here.run)
        previous = by_number.get(here.previous) if here.previous is not None else None
        here = previous if previous is not None and previous.seq < here.seq else None

    def was_served(release: Release, *, unknown: bool) -> bool:
        then = by_number.get(release.previous) if release.previous is not None else None
        return unknown if then is None else snapshot_order(then.snapshot) <= snapshot_order(release.snapshot)

    between = (release for release in releases if way[-1] < release.seq < way[0] and release.run not in runs)
    gone = {release.seq for release in between if was_served(release, unknown=False)}
    after = (release for release in releases if release.seq > way[0] and pointer.may_have_left(release.seq))
    gone |= {release.seq for release in after if was_served(release, unknown=True)}
    last = {by_number[seq].run: seq for seq in sorted(by_number)}
    return {seq for seq in gone if last[by_number[seq].run] in gone}


def _way(number: int, continues: Mapping[int, int | None], reasons: Mapping[int, str]) -> Way:
    ancestor = continues[number]
    while ancestor is not None and ancestor not in reasons:
        further = continues.get(ancestor)
        # No run continues a later release, so such a document was changed by hand.
        ancestor = further if further is not None and further < ancestor else None
    because = None if ancestor is None else reasons[ancestor]
    return {
        "continues": continues[number],
        "descends_from": ancestor,
        "because": because,
        "void": reasons.get(number),
    }
