"""The time of day seen by the processes of a test."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

HOUR = 3600.0
_TIME, _TIME_NS = time.time, time.time_ns


@contextmanager
def clock_wrong_by(seconds: float) -> Iterator[None]:
    """Set this process's wall clock wrong within the context.

    It is ahead or behind; seconds pass as usual.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: _TIME() + seconds)
        patch.setattr(time, "time_ns", lambda: _TIME_NS() + round(seconds * 1e9))
        yield
