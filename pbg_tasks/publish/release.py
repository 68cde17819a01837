"""Releases of a channel, written once each.

One pointer, which readers follow, moves by compare-and-swap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pbg_tasks.checkpoint.manifest import Sha256, Stamped
from pbg_tasks.config.base import Frozen
from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.config.results import ReleaseFacts, ReleaseMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Release(Frozen):
    """One release: a plain PBG checkpoint directory with names and facts.

    Attributes:
        seq: number in its channel, from 1.
        run: id of the run that made it.
        snapshot: key of the edges it was trained on.
        directory: key of the checkpoint directory below the graph's store.
        manifest_sha256: hash of that directory's manifest, which names every file and its hash.
        id_layout: hash of the settings that must stay equal for the next night to keep the ids.
        vector_space: hash of the settings that must stay equal for the next night to start from these vectors.
        split: hash of the split they were trained on; another one could hold out edges on which they were trained.
        previous: the release the channel pointed to when this one was published.
        metrics: of the evaluation, as ``evaluate`` wrote them.
        data: edges and entities of the snapshot, and the numbers of edges of the snapshots before it.
    """

    format: Literal[1] = 1
    graph: str
    channel: str
    seq: Annotated[int, Field(ge=1)]
    run: str
    snapshot: str
    directory: str
    manifest_sha256: Sha256
    id_layout: Sha256
    vector_space: Sha256
    split: Sha256
    previous: int | None = None
    metrics: ReleaseMetrics = Field(default_factory=dict)
    data: ReleaseFacts = Field(default_factory=dict)


class Current(Stamped):
    """Pointer of a channel.

    Attributes:
        seq: of the release.
        release_sha256: hash of the release's document.
        moved_by: reason of its last move.
        highest: number that the channel has ever pointed to; None where an earlier version wrote the document.
    """

    format: Literal[1] = 1
    seq: int
    release_sha256: Sha256
    moved_by: Literal["publish", "rollback"]
    highest: Annotated[int, Field(ge=1)] | None = None


def newest_before(releases: Iterable[Release], snapshot: str) -> Release | None:
    """Return the last release of the newest snapshot before one.

    None is returned where there is none.
    """
    earlier = (each for each in releases if snapshot_order(each.snapshot) < snapshot_order(snapshot))
    return max(earlier, key=lambda each: (snapshot_order(each.snapshot), each.seq), default=None)


def served_before(
    release: Release, previous: Release | None, releases: Callable[[], Iterable[Release]]
) -> Release | None:
    """Return the release to which a channel goes back from another.

    It is ``previous``, unless that is of a later snapshot or gone.

    Args:
        release: to which the channel points.
        previous: to which it pointed when ``release`` was published, if it still exists.
        releases: walks all of the channel.
    """
    if previous is not None and snapshot_order(previous.snapshot) <= snapshot_order(release.snapshot):
        return previous
    return newest_before(releases(), release.snapshot)
