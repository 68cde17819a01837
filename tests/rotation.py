"""A daily share of expensive tests.

A number of days comes to all of them.

The day is the same in all processes of a run, which prints it; ``PBG_ROTATION`` in the environment repeats it.
"""

from __future__ import annotations

import functools
import math
import os
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

Item = TypeVar("Item")
STORY_DAYS = 5
"""Days that come to all stories; a prime, so that a story meets all choices of ``of_today``, too."""
lifted = False
"""Whether ``of_today`` returns everything: ``--every`` sets it, before modules of tests are imported."""
_STORIES = Path(__file__).with_name("stories.txt")
_SECONDS_OF_A_DAY = 86_400


def fix_rotation() -> int:
    """Fix the day for this process and its children; return it.

    A day in the environment is kept.
    """
    os.environ.setdefault("PBG_ROTATION", str(int(time.time()) // _SECONDS_OF_A_DAY))
    return rotation()


def rotation() -> int:
    """Return the day."""
    return int(os.environ["PBG_ROTATION"])


def of_today(items: Sequence[Item], days: int) -> list[Item]:
    """Return the items of one day, at least one.

    ``days`` days come to all of them, and so does a run with ``--every``.

    Args:
        items: in an order that is the same every day.
        days: number of them.

    Raises:
        ValueError: a story would meet the same items on each of its days.
    """
    if math.gcd(days, STORY_DAYS) > 1:
        raise ValueError(f"choose by a number of days that {STORY_DAYS} does not divide, not {days}")
    if lifted:
        return list(items)
    return list(items[rotation() % days :: days]) or [items[rotation() % len(items)]]


@functools.cache
def stories(listing: Path = _STORIES) -> dict[str, int]:
    """Return the days of stories: files whose tests run together."""
    lines = listing.read_text(encoding="utf-8").splitlines()
    return {name: int(day) for day, _, name in (line.partition(" ") for line in lines)}


def story_comes_today(name: str) -> bool:
    """Whether a file below ``tests`` has its turn; only stories wait."""
    return name not in stories() or stories()[name] == rotation() % STORY_DAYS


def comes_today(name: str, days: int) -> bool:
    """Whether a test has its turn today, by its name alone."""
    return zlib.crc32(name.encode()) % days == rotation() % days
