"""Days of releases in a directory, whose objects are dated by the machines that write them.

A collection that runs under a clock some days ahead sees no release of the last days, as if nothing had been published
for so long. A store that was not used for some days looks the same, so no rule tells the two apart. But a wrong clock
leaves a gap between the dates of two objects, or between the newest one and the collection. Such a silence therefore
counts as half the grace at most: what was in use within the other half stays, also under a clock that is years ahead,
and also once other machines, or the same one, have written by that clock. What a store really did not need for long
goes some nights of use later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST_SILENCE = 0.5
"""Part of the grace that a time without any object counts as, at most."""


def silence(now: float, dates: Iterable[float], grace: float) -> float:
    """Return by how many seconds the silences before ``now`` are longer than what they count as.

    Only as many of the newest dates are looked at as the grace reaches back.

    Args:
        now: by the clock of the collection, in seconds.
        dates: when objects were written, each by the clock of its writer; those of collections left out.
        grace: seconds for which whatever was written stays.
    """
    left, later, surplus = grace, now, 0.0
    for date in sorted((date for date in dates if date < now), reverse=True):
        gap = later - date
        counts = min(gap, LONGEST_SILENCE * grace)
        if left <= counts:
            break
        left, later, surplus = left - counts, date, surplus + gap - counts
    return surplus
