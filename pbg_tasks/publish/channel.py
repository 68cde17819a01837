"""Channel: the list of its releases, and the pointer ``CURRENT.json``.

Publishing and rolling back are each one compare-and-swap of the pointer. Readers start there and never list. The
release that the pointer leaves, and the one that it is about to name, are held first, so that no garbage collection
removes them meanwhile.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.checkpoint.manifest import decode, encode, encode_unique, find_document, sha256
from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.errors import ConfigError, ConflictError, FormatError, InputError, NotFoundError
from pbg_tasks.publish.gc_holds import hold, run_with
from pbg_tasks.publish.release import Current, Pointer, Release, check_person, newest_before, served_before, still_holds
from pbg_tasks.storage.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pbg_tasks.publish.release import Canary, Candidate
    from pbg_tasks.storage import Store


_AT_ONCE = 8
"""Number of release documents that are read at a time: a channel of years has a thousand."""
_RELEASE = re.compile(r"([0-9]{8,18})\.json")
_HIGHEST = "highest"
"""Metadata of a pointer that an earlier version wrote; it is a field of the document now."""


def channel_names(store: Store) -> list[str]:
    """Return the names of the channels that point to a release."""
    parts = (info.key.split("/") for info in store.list("channels/"))
    return sorted(each[1] for each in parts if each[2:] == ["CURRENT.json"])


def all_channel_names(store: Store) -> list[str]:
    """Return the names of all channels, also those that point nowhere."""
    return sorted({info.key.split("/")[1] for info in store.list("channels/")})


class Channel:
    """Channel of a graph's store."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        self._pointer = f"channels/{name}/CURRENT.json"

    def release_key(self, seq: int) -> str:
        """Return the key of a release's document."""
        return f"channels/{self.name}/releases/{seq:08d}.json"

    def current(self) -> Pointer:
        """Read the pointer and the release it names.

        Raises:
            FormatError: the pointer is damaged, or the release is lost or not the one that it names.
        """
        if (found := find_document(Current, self.store, self._pointer)) is None:
            return Pointer(None, None)
        current, info = found
        release = self.release(current.seq, expected_sha256=current.release_sha256)
        highest, kept = current.highest, info.metadata.get(_HIGHEST)
        if highest is None and kept is not None:
            if not kept.isdecimal():
                raise FormatError(f"{self.store.url}/{self._pointer}: metadata {_HIGHEST!r} is {kept!r}, not a number")
            highest = int(kept)
        return Pointer(
            info,
            release,
            rolled_back=current.moved_by == "rollback",
            highest=highest,
            by=current.by,
            at=current.at,
            canary=current.canary,
            stopped=current.stopped,
        )

    def release(self, seq: int, *, expected_sha256: str | None = None) -> Release:
        """Read one release.

        Raises:
            InputError: there is none of that number.
            FormatError: it is not the one expected, or that one is lost.
        """
        key = self.release_key(seq)
        try:
            data = self.store.get(key).data
        except NotFoundError:
            if expected_sha256 is not None:
                raise FormatError(f"{self.store.url}/{key}: lost, though a channel points to it; restore it") from None
            raise InputError(
                f"channel {self.name!r} of {self.store.url} has no release {seq}; `pbg releases` lists those it has"
            ) from None
        if expected_sha256 is not None and sha256(data) != expected_sha256:
            raise FormatError(f"{self.store.url}/{key}: changed after it was published")
        return decode(Release, data, source=f"{self.store.url}/{key}")

    def stored_sha256(self, seq: int) -> str:
        """Return the hash of a release's document as it is stored.

        This version need not encode a document of another version alike.
        """
        return sha256(self.store.get(self.release_key(seq)).data)

    def check_graph(self, graph: str) -> None:
        """Refuse a graph that would continue another graph's vectors.

        It would also replace the other graph's releases.

        Raises:
            ConfigError: the channel serves another graph.
        """
        _check_graph(self, self.current().release, graph)

    def releases(self, *, newest_first: bool = False) -> Iterator[Release]:
        """Walk all releases, by default the oldest first.

        Releases that are removed meanwhile are left out.
        """

        def found(seq: int) -> Release | None:
            there = find_document(Release, self.store, self.release_key(seq))
            return None if there is None else there[0]

        numbers = self.numbers()[::-1] if newest_first else self.numbers()
        for begin in range(0, len(numbers), _AT_ONCE):
            for release in in_parallel(found, numbers[begin : begin + _AT_ONCE], _AT_ONCE):
                if release is not None:
                    yield release

    def numbers(self) -> list[int]:
        """Return the numbers of all releases, oldest first, without reading them.

        Other objects are left out.
        """
        prefix = f"channels/{self.name}/releases/"
        found = (_RELEASE.fullmatch(info.key.removeprefix(prefix)) for info in self.store.list(prefix))
        return [int(match[1]) for match in found if match is not None]

    def before(self, snapshot: str) -> Release | None:
        """Return the release that a run on ``snapshot`` continues.

        It is of a snapshot before that one, never of a later one. It is the current release where that is older, so
        that a roll-back counts. For a redo of the current snapshot or an earlier one it is the last release that the
        channel served before that snapshot on its way to the current release, or the newest of those since, if nights
        from there on were redone or came late. Where the way is not known that far, it is the newest of the earlier
        snapshots.
        """
        current = self.current().release
        if current is not None and _is_before(current, snapshot):
            return current
        every: dict[int | None, Release] = {release.seq: release for release in self.releases()}
        first, release = None, current
        while release is not None and not _is_before(release, snapshot):
            first, release = release, every.get(release.previous)
        if first is None or release is None:
            return newest_before(every.values(), snapshot)
        # Older releases that are not on the way may have been rolled back from; later ones are those of redone nights.
        since = [each for each in every.values() if each.seq > first.seq]
        return newest_before([release, *since], snapshot)

    def _find(self, seq: int | None) -> Release | None:
        """Read a release; None when there is none of that number."""
        return None if seq is None or self.store.head(self.release_key(seq)) is None else self.release(seq)

    def publish(
        self,
        candidate: Candidate,
        *,
        planned_on: int | None,
        independent: bool = False,
        by: str | None = None,
        check: Callable[[Pointer], None] | None = None,
    ) -> tuple[Release, bool]:
        """Record a release and point the channel to it.

        Publishing the same run again changes nothing.

        Args:
            candidate: the fields of the release that the run gives.
            planned_on: number of the release the run started from.
            independent: whether the run started from none, so that the channel's pointer does not matter.
            by: the person, or the rule, that publishes; None: a night.
            check: refuses the release beside the one that the channel serves, each time before the pointer is swapped.

        Returns:
            The release, and whether the channel points to it. A channel never goes back to an older snapshot, and never
                again to a release from which a user rolled it back: a task that is tried again cannot know of the
                roll-back. A release that an interrupted call only recorded is published, under a new number if need be.

        Raises:
            ConflictError: the channel moved on since the run was planned.
            ConfigError: it serves another graph.
        """
        hold(self.store, run_with(candidate["directory"], candidate["run"]))
        lost = False
        while True:
            pointer = self.current()
            there = pointer.release
            if there is not None and there.run == candidate["run"]:
                return there, True
            _check_graph(self, there, candidate["graph"])
            if (left := pointer.left_of(self.of_run(candidate["run"]))) is not None:
                return left, False
            if check is not None:
                check(pointer)
            moves = there is None or snapshot_order(there.snapshot) <= snapshot_order(candidate["snapshot"])
            if moves and not independent:
                self._check_plan(there, candidate["snapshot"], planned_on)
            release = self._record(candidate, there, moves=moves, lost=lost)
            if not moves or self._point(pointer, release, moved_by="publish", by=by):
                return release, moves
            # The channel was moved meanwhile, perhaps to this very run, which two tasks may publish at once.
            lost = True

    def _check_plan(self, there: Release | None, snapshot: str, planned_on: int | None) -> None:
        """Refuse a run that started from another release than the current one.

        One that redoes the current release's snapshot is accepted, unless a run that is planned now would start from
        another release: the one from which this run started was rolled back or redone since.
        """
        redoes = there is not None and there.snapshot == snapshot
        points_to, begins = (each.seq if each else None for each in (there, self.before(snapshot) if redoes else there))
        if planned_on not in {points_to, begins}:
            now = f"a run of {snapshot!r} begins with release {begins} now, " if redoes else ""
            raise ConflictError(
                f"channel {self.name!r} points to release {points_to}, {now}this run was planned on "
                f"{planned_on}: plan the snapshot {snapshot!r} again"
            )

    def _record(self, candidate: Candidate, there: Release | None, *, moves: bool, lost: bool) -> Release:
        """Write the release document under the next free number.

        If an earlier call left one for this run, return that where it still holds beside the release that is there.
        """
        while True:
            # The number is determined first: another process that records this run between the two reads has then taken
            # that number.
            seq = max(self.numbers(), default=0) + 1
            recorded = next(self.of_run(candidate["run"]), None)
            if recorded is not None and still_holds(recorded, there, self._find, moves=moves, lost=lost):
                return recorded
            release = Release(**candidate, channel=self.name, seq=seq, previous=there.seq if there else None)
            open_preserved(self.store, release.directory, expected_sha256=release.manifest_sha256)
            try:
                self.store.put_new(self.release_key(seq), encode(release))
            except ConflictError:
                continue  # another publisher took the number
            return release

    def of_run(self, run: str) -> Iterator[Release]:
        """Walk the releases of a run, newest first."""
        return (release for release in self.releases(newest_first=True) if release.run == run)

    def _point(
        self,
        pointer: Pointer,
        release: Release,
        *,
        moved_by: Literal["publish", "rollback"],
        by: str | None,
        at: datetime | None = None,
        canary: Canary | None = None,
        stopped: Canary | None = None,
    ) -> bool:
        """Swap the pointer; return False when it has changed meanwhile.

        Without a new canary an earlier one ends: all readers follow the pointer. The share that a person ended last is
        remembered until its release is shared again.
        """
        if pointer.release is not None:
            _hold(self.store, pointer.release)  # its readers have the grace to finish
        # A canary that is damaged, lost or being removed must not keep the channel where it is.
        with suppress(FormatError, ConflictError):
            if (canary_release := self.canary_release(pointer)) is not None:
                _hold(self.store, canary_release)
        stopped = stopped or pointer.stopped
        if canary is not None and stopped is not None and canary.is_of(stopped.channel, stopped.seq):
            stopped = None
        current = Current(
            seq=release.seq,
            release_sha256=self.stored_sha256(release.seq),
            moved_by=moved_by,
            highest=max(release.seq, self._highest(pointer)),
            by=by,
            at=at or (None if by is None else datetime.now(UTC)),
            canary=canary,
            stopped=stopped,
        )
        try:
            self.store.swap(self._pointer, encode_unique(current), expected=pointer.info)
        except ConflictError:
            return False
        return True

    def set_canary(self, pointer: Pointer, canary: Canary | None, *, stopped: Canary | None = None) -> bool:
        """Give the pointer another canary, or none.

        Return False when it has changed meanwhile.

        Args:
            pointer: of the channel, which has a release.
            canary: whose release is held; None: all readers follow the pointer.
            stopped: share that a person ends by that.
        """
        if pointer.release is None:
            raise RuntimeError("a canary of a channel without a release: a bug")
        moved_by: Literal["publish", "rollback"] = "rollback" if pointer.rolled_back else "publish"
        return self._point(
            pointer, pointer.release, moved_by=moved_by, by=pointer.by, at=pointer.at, canary=canary, stopped=stopped
        )

    def canary_release(self, pointer: Pointer) -> Release | None:
        """Read the release of a pointer's canary; None without one.

        Raises:
            FormatError: it is lost, or changed after the share was set.
        """
        if (canary := pointer.canary) is None:
            return None
        return Channel(self.store, canary.channel).release(canary.seq, expected_sha256=canary.release_sha256)

    def _highest(self, pointer: Pointer) -> int:
        """Return the highest number a pointer may have had.

        Where that is not known, it is the highest number of all releases.
        """
        if pointer.info is None:
            return 0
        return pointer.highest if pointer.highest is not None else max(self.numbers(), default=0)

    def moved(self) -> ConflictError:
        """Return the error of a swap that another process won."""
        return ConflictError(
            f"channel {self.name!r} of {self.store.url} was moved by another process meanwhile; look at "
            "`pbg releases` and try again"
        )

    def rollback(self, to: int | None = None, *, by: str | None = None) -> tuple[Release, Release]:
        """Point back to an earlier release.

        It is number ``to``, or the one that was served before. Where none was served before, as when the newest night
        came first, it is the one of the newest snapshot before. A canary ends, and no rule sets it again.

        Args:
            to: number of the release.
            by: name of the person; None: not known.

        Returns:
            The release the channel pointed to, and the one it points to now.

        Raises:
            ConfigError: the person cannot have that name.
            InputError: there is no release to go back to.
            ConflictError: the channel was moved meanwhile.
        """
        check_person(by, "--by")
        pointer = self.current()
        there = pointer.release
        if there is None:
            raise InputError(f"channel {self.name!r} of {self.store.url} has no release yet")
        target = to
        if to is None and (served := served_before(there, self._find(there.previous), self.releases)) is not None:
            target = served.seq
        if target is None:
            raise InputError(f"release {there.seq} of channel {self.name!r} is the first: nothing to go back to")
        if target == there.seq and pointer.canary is None:
            return there, there
        _hold(self.store, self.release(target))
        release = self.release(target)  # read again, because it may have been removed before it was held
        open_preserved(self.store, release.directory, expected_sha256=release.manifest_sha256)
        stopped = None if pointer.canary is None else pointer.canary.ended(by)
        if not self._point(pointer, release, moved_by="rollback", by=by, stopped=stopped):
            raise self.moved()
        return there, release


def _hold(store: Store, release: Release) -> None:
    hold(store, run_with(release.directory, release.run))


def _is_before(release: Release, snapshot: str) -> bool:
    return snapshot_order(release.snapshot) < snapshot_order(snapshot)


def _check_graph(channel: Channel, there: Release | None, graph: str) -> None:
    if there is not None and there.graph != graph:
        raise ConfigError(
            f"channel {channel.name!r} of {channel.store.url} serves graph {there.graph!r}, not {graph!r}: give one of "
            "them a `channel` of its own, or a `store`"
        )
