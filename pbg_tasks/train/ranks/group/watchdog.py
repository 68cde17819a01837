"""Ends a process that should have ended by itself: the last resort against whatever hangs."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from typing import TYPE_CHECKING

from pbg_tasks.progress import say

if TYPE_CHECKING:
    from pbg_tasks.errors import PbgError

_LAST_WORDS = 1.0  # seconds in which a line is to be printed, for that may hang too
_GRACE = 5.0  # seconds after which nothing of Python is relied on any more


class Watchdog:
    """Gives the process some time to end from the moment it is armed.

    Args:
        limit: seconds; None: for ever.
        since: what happened when it is armed.
    """

    def __init__(self, limit: float | None, *, since: str = "the gang broke") -> None:
        self._limit, self._since = limit, since
        self._cancelled = threading.Event()
        self._armed = False

    def arm(self, reason: PbgError) -> None:
        """Begin to count; the exit status will be that of ``reason``."""
        if self._limit is None:
            return
        self._armed = True
        if sys.__stderr__ is not None:  # a thread in C: it comes through when another keeps the interpreter locked
            faulthandler.dump_traceback_later(self._limit + _GRACE, exit=True, file=sys.__stderr__)
        threading.Thread(target=self._wait, args=(self._limit, reason), name="watchdog", daemon=True).start()

    def cancel(self) -> None:
        """Count no more."""
        self._cancelled.set()
        if self._armed:
            faulthandler.cancel_dump_traceback_later()

    def _wait(self, limit: float, reason: PbgError) -> None:
        if self._cancelled.wait(limit):
            return
        text = f"still running {limit:g} s after {self._since}, so this process is ended ({reason})"
        line = threading.Thread(target=say, args=(text,), daemon=True)
        line.start()
        line.join(_LAST_WORDS)
        os._exit(reason.exit_code)
