"""Compatibility of releases, by the contracts in their manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.errors import IncompatibleError

if TYPE_CHECKING:
    from pbg_tasks.config import Previous
    from pbg_tasks.publish.release import Release
    from pbg_tasks.storage import Store


def space_of(store: Store, release: Release | Previous) -> str:
    """Return the id of the space that a release's vectors are in.

    A release of an earlier version, whose manifest has no contract, counts as the beginning of its space.

    Raises:
        NotFoundError: the release is there no more.
        FormatError: its manifest is damaged.
    """
    files = open_preserved(store, release.directory, expected_sha256=release.manifest_sha256)
    known = files.contract.space if files.contract is not None else None
    return known or release.run


def check_same_space(store: Store, new: Release, served: Release, *, channel: str) -> None:
    """Refuse a release in another space than a channel serves.

    Raises:
        IncompatibleError: they are in another space.
    """
    ours, theirs = space_of(store, new), space_of(store, served)
    if ours != theirs:
        raise IncompatibleError(
            f"release {new.seq} of channel {new.channel!r} is in another vector space ({ours}) than release "
            f"{served.seq}, which channel {channel!r} serves ({theirs}): readers that have vectors of both would "
            "compare what cannot be compared; if none does, --other-space goes on all the same"
        )
