"""Ages of a store's objects, for a collection.

Objects of a store with a clock of its own (S3) are dated by it, and ``Dates`` compares dates. A directory has no clock:
its files are dated by the machines that write them. One machine whose clock is days ahead would take a run that another
one is training for an old one. So ``Looks`` compares no dates. A collection stores the objects that it saw, and when,
by the time since its machine was started; no change of a clock moves that time. A later collection on the same machine,
not restarted since, finds the objects that have not changed in between.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pbg_tasks.checkpoint.manifest import encode, find_document
from pbg_tasks.config.base import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pbg_tasks.storage import ObjectInfo, Store


LONGEST_SILENCE = 0.5
"""Largest part of the grace that a time without any object counts as."""


def silence(now: float, dates: Iterable[float], grace: float) -> float:
    """Return the surplus of the silences before ``now``, in seconds.

    A silence, a time in which no object was written, counts at most as a part of the grace; the surplus is the rest.
    Only the newest dates matter, as far as the grace reaches back.

    Args:
        now: by the clock of the collection, in seconds.
        dates: times of the objects' writes, each by the clock of its writer; those of collections left out.
        grace: seconds for which whatever was written stays.
    """
    left, later = grace, now
    surplus = 0.0
    for date in sorted((date for date in dates if date < now), reverse=True):
        gap = later - date
        counts = min(gap, LONGEST_SILENCE * grace)
        if left <= counts:
            break
        left, later = left - counts, date
        surplus = surplus + gap - counts
    return surplus


LOOKS = ".looks/"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_OFFSETS = Path("/proc/self/timens_offsets")


@dataclass(frozen=True, slots=True)
class Dates:
    """Ages by the dates of objects.

    Attributes:
        since: the moment at which the grace begins, by the clock that dates the objects.
    """

    since: float

    def unchanged(self, infos: Iterable[ObjectInfo]) -> bool:
        """Return whether all objects are older than the grace.

        Args:
            infos: objects as listed in this collection. They belong together: no other call names a part of them.
        """
        return all(info.modified is not None and info.modified < self.since for info in infos)

    def keep(self) -> None:
        """Store nothing: objects carry their dates."""


class Seen(Frozen):
    """Objects that the collections of a machine saw since its start.

    Attributes:
        first: seconds from the start of the machine to the collection that first saw objects as they are, by the
            SHA-256 of their keys and tags.
    """

    format: Literal[1] = 1
    first: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]


@dataclass(slots=True)
class Looks:
    """Ages by the objects that earlier collections on this machine saw.

    Several collections of a machine may replace each other's document: each version of it is true.

    Attributes:
        store: a directory.
        grace: in seconds.
        machine: names the machine since its last start; None where that is not known, so that nothing is ever old.
        began: seconds from the start of the machine to the start of this collection.
        before: objects that earlier collections saw, as ``Seen.first``.
        seen: objects that this one saw, as ``Seen.first``; None for those that no earlier one saw.
    """

    store: Store
    grace: float
    machine: str | None
    began: float
    before: dict[str, float]
    seen: dict[str, float | None] = field(default_factory=dict)

    @classmethod
    def of(cls, store: Store, grace: float) -> Looks:
        """Read the objects that earlier collections on this machine saw.

        Raises:
            FormatError: the document is damaged.
        """
        machine = _machine()
        found = None if machine is None else find_document(Seen, store, f"{LOOKS}{machine}.json")
        return cls(store, grace, machine, _uptime(), {} if found is None else found[0].first)

    def unchanged(self, infos: Iterable[ObjectInfo]) -> bool:
        """Return whether a collection saw these objects and tags a grace ago.

        Args:
            infos: as for ``Dates``.
        """
        digest = hashlib.sha256()
        for info in sorted(infos, key=lambda info: info.key):
            digest.update(os.fsencode(f"{info.key}\0{info.tag}\0"))  # the name of a file may have any bytes
        token = digest.hexdigest()
        first = self.seen[token] = self.before.get(token)
        return self.grace <= (0.0 if first is None else self.began - first)

    def keep(self) -> None:
        """Store the objects that this collection saw, for the next one.

        It must run on this machine.
        """
        if self.machine is not None:
            now = _uptime()  # at the end, so that an age is never too long
            first = {token: now if moment is None else moment for token, moment in self.seen.items()}
            self.store.put(f"{LOOKS}{self.machine}.json", encode(Seen(first=first)))


def _machine() -> str | None:
    """Return the id that the kernel drew at its start.

    Containers of a host share it, as they share its clock. None where the system has no such id.
    """
    try:
        drawn = _BOOT_ID.read_text().strip()
    except OSError:
        return None
    return drawn if re.fullmatch(r"[0-9a-f-]{36}", drawn) else None


def _uptime() -> float:
    """Return the seconds since the machine's start, sleep included.

    A container may have a time namespace, which adds an offset to this clock but leaves the boot id as it is.
    """
    offset = 0.0
    with suppress(FileNotFoundError):  # in a kernel without time namespaces
        _, seconds, nanoseconds = _OFFSETS.read_text().splitlines()[-1].split()  # the last line is this clock's
        offset = int(seconds) + int(nanoseconds) / 1e9
    return time.clock_gettime(time.CLOCK_BOOTTIME) - offset


Ages = Dates | Looks
"""Measure of how long objects have been unchanged."""
