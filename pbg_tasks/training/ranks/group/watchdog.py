"""Watchdog that ends a process which should have ended by itself.

It is the last resort against whatever hangs.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from typing import TYPE_CHECKING

from pbg_tasks.progress import say

if TYPE_CHECKING:
    from pbg_tasks.errors import PbgError

_LAST_WORDS = 1.0  # seconds in which a line has to be printed, as printing may hang, too
_GRACE = 5.0  # seconds after which no Python code is relied on


class Watchdog:
    """Limit on the time of the process after the watchdog is armed.

    Args:
        limit: seconds; None: no limit.
        since: event at which it is armed, for the message.
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
        if sys.__stderr__ is not None:  # a thread in C, which runs even where another one keeps the interpreter locked
            faulthandler.dump_traceback_later(self._limit + _GRACE, exit=True, file=sys.__stderr__)
        threading.Thread(target=self._wait, args=(self._limit, reason), name="watchdog", daemon=True).start()

    def cancel(self) -> None:
        """Stop counting."""
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
