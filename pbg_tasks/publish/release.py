"""Releases of a channel, written once each.

One pointer, which readers follow, moves by compare-and-swap.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NotRequired, TypedDict, cast

from pydantic import Field

from pbg_tasks.checkpoint.manifest import Sha256, Stamped
from pbg_tasks.config.base import Frozen, Growing
from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.config.results import ReleaseFacts, ReleaseMetrics
from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pbg_tasks.config.results import Result
    from pbg_tasks.storage import ObjectInfo


Person = Annotated[str, Field(min_length=1, max_length=200)]
"""Name in a stored document; one that is written now also passes ``check_person``."""
Share = Annotated[float, Field(gt=0, lt=1)]
NIGHT_ZERO = "0"
"""Snapshot key that comes before any date."""
ADOPTED = "adopted"
"""Key of a release's facts about its data, with the URL of the checkpoint that was adopted."""


def check_person(name: str | None, option: str) -> None:
    """Refuse a name that lists could not show as it is.

    Documents of earlier versions may have such names, so reading them does not check it.

    Args:
        name: of a person, team or rule; None: not known.
        option: of the command that gives it.

    Raises:
        ConfigError: it is blank, or has a line break or control character, which could look like rows of a list.
    """
    if name is not None and not (name.strip() and name.isprintable()):
        raise ConfigError(f"{option} {name!r}: a name is one line of printable text, such as mia; write it so")


class Promoted(Frozen):
    """Origin of a release that a channel took over from another one.

    Attributes:
        channel: that had it first.
        seq: its number there.
        by: the person, or the rule, that promoted it.
        at: time of that, UTC.
    """

    channel: str
    seq: Annotated[int, Field(ge=1)]
    by: Person
    at: datetime


class Canary(Frozen):
    """Release of another channel that a share of a channel's keys reads.

    Attributes:
        channel: of the release.
        seq: its number there.
        release_sha256: hash of the release's document.
        share: of the keys.
        by: the person, or the rule, that set it.
        at: time of that, UTC.
    """

    channel: str
    seq: Annotated[int, Field(ge=1)]
    release_sha256: Sha256
    share: Share
    by: Person
    at: datetime

    def is_of(self, channel: str, seq: int) -> bool:
        """Return whether a release is the one that is shared."""
        return (self.channel, self.seq) == (channel, seq)

    def ended(self, by: str | None) -> Canary:
        """Return the record of its end, with the time and the person.

        Args:
            by: name of the person; None: not known, so that it stays that of its beginning.
        """
        return self.model_copy(update={"by": by or self.by, "at": datetime.now(UTC)})


class Candidate(TypedDict):
    """Fields of a release, but those that its channel adds."""

    graph: str
    run: str
    snapshot: str
    directory: str
    manifest_sha256: str
    id_layout: str
    vector_space: str
    split: str
    metrics: NotRequired[Result]
    data: NotRequired[Result]
    promoted: NotRequired[Promoted | None]


class Release(Growing):
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
        previous: the release the channel pointed to when this one was published. A run that was recorded, and published
            only after the channel had moved, has a second release.
        metrics: of the evaluation, as ``evaluate`` wrote them.
        data: edges and entities of the snapshot, and the numbers of edges of the snapshots before it.
        promoted: its origin; None where a night published it here.
    """

    later_keys: ClassVar[tuple[str, ...]] = ("promoted",)

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
    promoted: Promoted | None = None

    @property
    def is_adopted(self) -> bool:
        """Whether it is of a checkpoint, and no run trained it."""
        return ADOPTED in self.data

    def candidate(self) -> Candidate:
        """Return the fields that another channel, or this one again, may record."""
        fields = self.model_dump(exclude={"format", "channel", "seq", "previous"})
        return cast("Candidate", fields)


class Current(Growing, Stamped):
    """Pointer of a channel.

    A canary is a key of the pointer, so that whatever changes the readers of a channel is one swap. Versions before the
    key ignore it, and drop it when they move the channel: then all readers follow the pointer.

    Attributes:
        seq: of the release.
        release_sha256: hash of the release's document.
        moved_by: reason of its last move.
        highest: number that the channel has ever pointed to; None where an earlier version wrote the document.
        by: the person, or the rule, that moved it last; None: a night.
        at: time of that, UTC.
        canary: release that a share of the keys reads instead; None: all readers read ``seq``.
        stopped: share that a person ended last, with the person and the time of its end; no rule sets it again.
    """

    later_keys: ClassVar[tuple[str, ...]] = ("by", "at", "canary", "stopped")

    format: Literal[1] = 1
    seq: int
    release_sha256: Sha256
    moved_by: Literal["publish", "rollback"]
    highest: Annotated[int, Field(ge=1)] | None = None
    by: Person | None = None
    at: datetime | None = None
    canary: Canary | None = None
    stopped: Canary | None = None


@dataclass(frozen=True, slots=True)
class Pointer:
    """Pointer of a channel as it was read, for a swap.

    Attributes:
        info: of the object; None where the channel has pointed to no release yet.
        release: that it names.
        rolled_back: whether it was a roll-back that moved it there.
        highest: the highest number it has ever had; None where an early version wrote it, which did not record that, or
            recorded it in metadata that a copy of the store left behind.
        by: the person, or the rule, that moved it last; None: a night.
        at: time of that.
        canary: release of another channel that a share of the keys reads; None: there is none.
        stopped: share that a person ended last.
    """

    info: ObjectInfo | None
    release: Release | None
    rolled_back: bool = False
    highest: int | None = None
    by: str | None = None
    at: datetime | None = None
    canary: Canary | None = None
    stopped: Canary | None = None

    def may_have_left(self, number: int) -> bool:
        """Return whether the pointer may have been rolled back from a release.

        A release that was recorded, but to which the pointer never moved, was not left. The document of a release is
        written before the pointer moves, so that its existence proves nothing. Numbers only grow, so a release with a
        number above all that the pointer has had was never served; no clock is needed. Where the highest number is
        unknown, every release counts as served: a release that a user left on purpose must not come back by itself.
        """
        return self.rolled_back and (self.highest is None or number <= self.highest)

    def left_of(self, releases: Iterable[Release]) -> Release | None:
        """Return the first of some releases that may have been left."""
        return next((each for each in releases if self.may_have_left(each.seq)), None) if self.rolled_back else None


def still_holds(
    recorded: Release, there: Release | None, find: Callable[[int | None], Release | None], *, moves: bool, lost: bool
) -> bool:
    """Return whether the record of an earlier publication still holds.

    It names the release that the channel points to. Where the pointer is not to move, because that one is of a later
    snapshot, it holds too, for it may have been served, and the channel rolled back from it before later nights came.
    After a lost swap it was not served, but on the way there by another process, or it came late before.

    Args:
        recorded: the record.
        there: to which the channel points.
        find: reads a release by its number; None where there is none.
        moves: whether the pointer is to move.
        lost: whether this publication lost a swap of the pointer.
    """
    if recorded.previous == (there.seq if there else None) or not (moves or lost):
        return True
    if moves:
        return False
    before, here = find(recorded.previous), there
    if before is not None and snapshot_order(before.snapshot) > snapshot_order(recorded.snapshot):
        return True
    while here is not None and here.seq > recorded.seq:
        here = find(here.previous) if (here.previous or 0) < here.seq else None
    return here is not None and here.seq == recorded.seq


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
