"""Promotion: a channel takes over a release of another channel.

Nights publish to one channel, readers follow another one. A release is promoted to all readers, or to the share of
their keys that reads a *canary*. Each change is one swap of the readers' pointer. Nothing is copied: both channels have
a document of the release, and its files are those of its run.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.errors import ConfigError, ConflictError, FormatError, InputError
from pbg_tasks.publish.compatibility import check_same_space
from pbg_tasks.publish.gc_holds import hold, run_with
from pbg_tasks.publish.release import Canary, Promoted, check_person
from pbg_tasks.storage.parallel import in_parallel

if TYPE_CHECKING:
    from pbg_tasks.publish.channel import Channel
    from pbg_tasks.publish.release import Pointer, Release

_AT_ONCE = 16


def release_for(channel: Channel, key: str | None) -> Release | None:
    """Return the release that a reader with a key reads.

    None is returned where the channel has none. One key reads the canary at every larger share, too, and on every
    machine.
    """
    pointer = channel.current()
    if pointer.canary is None or key is None or not draws(channel.name, key, pointer.canary.share):
        return pointer.release
    return channel.canary_release(pointer)


def draws(channel: str, key: str, share: float) -> bool:
    """Return whether a key is within a share of a channel's keys.

    The first 8 bytes of the SHA-256 of channel, NUL byte and key, as a big-endian number, are below that share of all
    such numbers.
    """
    number = int.from_bytes(hashlib.sha256(f"{channel}\0{key}".encode()).digest()[:8])
    return number < share * 2**64


@dataclass(frozen=True, slots=True)
class Move:
    """Release of one channel that another one is to take over.

    Attributes:
        source: channel that has it.
        target: channel that readers follow.
        release: as the source has it.
        by: the person, or the rule, that decides.
        other_space: whether its vectors may be in another space than those that the target serves.
        seen: pointer of the target for which a rule decided; None: a person did.
    """

    source: Channel
    target: Channel
    release: Release
    by: str
    other_space: bool = False
    seen: Pointer | None = None

    @classmethod
    def of(
        cls,
        source: Channel,
        target: Channel,
        seq: int | None,
        *,
        by: str,
        other_space: bool = False,
        seen: Pointer | None = None,
    ) -> Move:
        """Find the release and hold it; without a number, the current one.

        Raises:
            ConfigError: both channels are the same one, or the person cannot have that name.
            InputError: there is no such release.
            FormatError: it is damaged, or a file of it is missing.
            ConflictError: it is being removed.
        """
        check_person(by, "--by")
        if source.name == target.name:
            raise ConfigError(f"channel {source.name!r} cannot take over a release of its own; `pbg rollback` moves it")
        found = source.current().release if seq is None else source.release(seq)
        if found is None:
            raise InputError(f"channel {source.name!r} of {source.store.url} has no release yet; a night makes one")
        hold(source.store, run_with(found.directory, found.run))
        release = source.release(found.seq)  # read again, because it may have been removed before it was held
        _check_whole(source, release)
        return cls(source, target, release, by, other_space, seen)

    def promote(self) -> Release:
        """Point the target to the release; done again, it changes nothing.

        A share ends, also where the target serves the release already; a rule ends only one of the same source.

        Returns:
            The release as the target has it.

        Raises:
            ConflictError: the target serves a newer snapshot, was rolled back from the release, or was moved meanwhile.
            IncompatibleError: its vectors are in another space than those that the target serves.
            ConfigError: the target serves another graph.
        """
        pointer = self.target.current()
        there, canary = pointer.release, pointer.canary
        if there is not None and there.run == self.release.run:
            if canary is not None and (self.seen is None or canary.channel == self.source.name):
                self.check(pointer)
                stopped = canary.ended(self.by) if self.seen is None else None
                if not self.target.set_canary(pointer, None, stopped=stopped):
                    raise self.target.moved()
            return there
        origin = Promoted(channel=self.source.name, seq=self.release.seq, by=self.by, at=datetime.now(UTC))
        promoted, points = self.target.publish(
            {**self.release.candidate(), "promoted": origin},
            planned_on=None,
            independent=True,
            by=self.by,
            check=self.check,
        )
        if not points:
            raise self._left(promoted.seq)
        return promoted

    def share(self, share: float) -> Pointer:
        """Let a share of the target's keys read the release.

        Done again, it changes nothing.

        Returns:
            The pointer as it was before.

        Raises:
            InputError: the target has no release, or serves this one.
            ConflictError: the target was moved meanwhile, or for a reason of ``promote``.
            IncompatibleError: as of ``promote``.
            ConfigError: the target serves another graph.
        """
        pointer = self.target.current()
        there, name = pointer.release, self.target.name
        if there is None:
            raise InputError(f"channel {name!r} has no release yet, so there is nothing to share; promote one first")
        if there.run == self.release.run:
            raise InputError(f"channel {name!r} serves this release to all readers: there is nothing to share")
        self.target.check_graph(self.release.graph)
        self.check(pointer)
        if (left := pointer.left_of(self.target.of_run(self.release.run))) is not None:
            raise self._left(left.seq)
        stored, now = self.source.stored_sha256(self.release.seq), pointer.canary
        wanted = (self.source.name, self.release.seq, stored, share)
        if now is not None and (now.channel, now.seq, now.release_sha256, now.share) == wanted:
            return pointer
        canary = Canary(
            channel=self.source.name,
            seq=self.release.seq,
            release_sha256=stored,
            share=share,
            by=self.by,
            at=datetime.now(UTC),
        )
        if not self.target.set_canary(pointer, canary):
            raise self.target.moved()
        return pointer

    def check(self, pointer: Pointer) -> None:
        """Refuse a release that does not belong beside what the target serves.

        Raises:
            ConflictError: the target serves a newer snapshot, or was moved since a rule decided.
            IncompatibleError: its vectors are in another space.
        """
        if self.seen is not None and pointer.info != self.seen.info:
            raise self.target.moved()
        there = pointer.release
        if there is None or there.graph != self.release.graph:  # publication refuses another graph
            return
        if snapshot_order(self.release.snapshot) < snapshot_order(there.snapshot):
            raise ConflictError(
                f"channel {self.target.name!r} serves snapshot {there.snapshot}, which is newer than "
                f"{self.release.snapshot} of release {self.release.seq} of {self.source.name!r}; only `pbg rollback` "
                "takes a channel back"
            )
        if not self.other_space:
            check_same_space(self.target.store, self.release, there, channel=self.target.name)

    def _left(self, seq: int) -> ConflictError:
        return ConflictError(
            f"channel {self.target.name!r} was rolled back from this release, its number {seq}; "
            f"`pbg rollback SPEC {seq} --channel {self.target.name}` brings it back"
        )


def stop_share(target: Channel, *, by: str | None = None) -> Canary | None:
    """Let all readers follow the pointer.

    Without a canary, nothing changes.

    Args:
        target: channel that readers follow.
        by: name of the person; None: not known.

    Returns:
        The canary that was.

    Raises:
        ConfigError: the person cannot have that name.
        ConflictError: the channel was moved meanwhile.
    """
    check_person(by, "--by")
    pointer = target.current()
    canary = pointer.canary
    if canary is not None and not target.set_canary(pointer, None, stopped=canary.ended(by)):
        raise target.moved()
    return canary


def _check_whole(channel: Channel, release: Release) -> None:
    """Refuse a release with a missing file or one of another size."""
    files = open_preserved(channel.store, release.directory, expected_sha256=release.manifest_sha256)

    def fault(name: str) -> str | None:
        info = channel.store.head(f"{release.directory}/{name}")
        return None if info is not None and info.size == files.records[name].size else name

    faults = in_parallel(fault, files.names, _AT_ONCE)
    if damaged := [name for name in faults if name is not None]:
        raise FormatError(
            f"{files.url}/{damaged[0]}: missing or of another size, so release {release.seq} of channel "
            f"{channel.name!r} cannot be read; `pbg verify` names all such files"
        )
