"""A channel: the list of its releases and the pointer ``CURRENT.json``.

Publishing and rolling back are each one compare-and-swap of the pointer. Readers start there and never list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.checkpoint.manifest import decode, encode, sha256
from pbg_tasks.errors import ConflictError, FormatError, InputError, NotFoundError
from pbg_tasks.publish.release import Current, Release

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.storage import ObjectInfo, Store


@dataclass(frozen=True, slots=True)
class Pointer:
    """The pointer as it was read: swap it only if it is still this object."""

    info: ObjectInfo | None
    release: Release | None


class Channel:
    """One channel of a graph's store."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        self._pointer = f"channels/{name}/CURRENT.json"

    def release_key(self, seq: int) -> str:
        """Return the key of a release's document."""
        return f"channels/{self.name}/releases/{seq:08d}.json"

    def current(self) -> Pointer:
        """Read the pointer and the release it names.

        Raises:
            FormatError: the release is missing or is not the one the pointer names.
        """
        try:
            blob = self.store.get(self._pointer)
        except NotFoundError:
            return Pointer(None, None)
        current = decode(Current, blob.data, source=f"{self.store.url}/{self._pointer}")
        return Pointer(blob.info, self.release(current.seq, expected_sha256=current.release_sha256))

    def release(self, seq: int, *, expected_sha256: str | None = None) -> Release:
        """Read one release.

        Raises:
            InputError: there is none of that number.
            FormatError: it is not the one expected.
        """
        key = self.release_key(seq)
        try:
            data = self.store.get(key).data
        except NotFoundError:
            raise InputError(f"channel {self.name!r} of {self.store.url} has no release {seq}") from None
        if expected_sha256 is not None and sha256(data) != expected_sha256:
            raise FormatError(f"{self.store.url}/{key}: changed after it was published")
        return decode(Release, data, source=f"{self.store.url}/{key}")

    def releases(self) -> Iterator[Release]:
        """Walk all releases, oldest first."""
        for info in self.store.list(f"channels/{self.name}/releases/"):
            yield decode(Release, self.store.get(info.key).data, source=f"{self.store.url}/{info.key}")

    def before(self, snapshot: str) -> Release | None:
        """Return the release a run on ``snapshot`` continues: the current one, or the one before a same-day redo."""
        release = self.current().release
        while release is not None and release.snapshot == snapshot:
            release = self.release(release.previous) if release.previous else None
        return release

    def publish(self, candidate: dict[str, Any], *, planned_on: int | None) -> tuple[Release, bool]:
        """Record a release and point the channel to it; publishing the same run again changes nothing.

        Args:
            candidate: the fields of the release but ``seq``, ``channel`` and ``previous``.
            planned_on: number of the release the run started from.

        Returns:
            The release, and whether the channel points to it. A channel never goes back to an older snapshot.

        Raises:
            ConflictError: the channel moved on since the run was planned, or during this call.
        """
        pointer = self.current()
        there = pointer.release
        if there is not None and there.run == candidate["run"]:
            return there, True
        previous = there.seq if there else None
        moves = there is None or there.snapshot <= candidate["snapshot"]
        redo = there is not None and there.snapshot == candidate["snapshot"]
        if moves and not redo and previous != planned_on:
            raise ConflictError(
                f"channel {self.name!r} points to release {previous}, this run was planned on "
                f"{planned_on}: plan the snapshot {candidate['snapshot']!r} again"
            )
        release = self._record(candidate, previous)
        if moves:
            self._point(pointer, release, moved_by="publish")
        return release, moves

    def _record(self, candidate: dict[str, Any], previous: int | None) -> Release:
        """Write the release document under the next free number, or find the one an interrupted call left."""
        seq = 0
        for release in self.releases():
            if release.run == candidate["run"]:
                return release
            seq = release.seq
        release = Release(**candidate, channel=self.name, seq=seq + 1, previous=previous)
        open_preserved(self.store, release.directory, expected_sha256=release.manifest_sha256)
        self.store.put_new(self.release_key(release.seq), encode(release))
        return release

    def _point(self, pointer: Pointer, release: Release, *, moved_by: Literal["publish", "rollback"]) -> None:
        current = Current(seq=release.seq, release_sha256=sha256(encode(release)), moved_by=moved_by)
        try:
            self.store.swap(self._pointer, encode(current), expected=pointer.info)
        except ConflictError:
            raise ConflictError(
                f"channel {self.name!r} of {self.store.url} was moved by someone else meanwhile"
            ) from None

    def rollback(self, to: int | None = None) -> tuple[Release, Release]:
        """Point back to an earlier release: to the one before, or to number ``to``.

        Returns:
            The release the channel pointed to, and the one it points to now.

        Raises:
            InputError: there is nothing to go back to.
            ConflictError: the channel was moved meanwhile.
        """
        pointer = self.current()
        there = pointer.release
        if there is None:
            raise InputError(f"channel {self.name!r} of {self.store.url} has no release yet")
        target = to if to is not None else there.previous
        if target is None:
            raise InputError(f"release {there.seq} of channel {self.name!r} is the first: nothing to go back to")
        release = self.release(target)
        if release.seq != there.seq:
            open_preserved(self.store, release.directory, expected_sha256=release.manifest_sha256)
            self._point(pointer, release, moved_by="rollback")
        return there, release
