"""End of a command's process without the teardown of its modules.

Python would clear every module and search for cycles before the system takes all memory back: a sixth of the CPU time
of a short task, and .4 s where torch is loaded. Whatever counts happens before: ``with`` blocks are left, threads
joined, and exit handlers called.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def leave_after(command: Callable[[], None]) -> None:
    """Run a command, and end the process with its status.

    A status that is no number, and an exception, are left to Python; so is everything where the environment has
    registered an exit handler before, such as a tracer's.
    """
    status: list[int] = []
    if atexit._ncallbacks() == 0:  # noqa: SLF001 - the only way to know that none comes later
        atexit.register(_leave, status)  # called after all handlers that the command registers
    try:
        command()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            status.append(end.code or 0)
        raise
    status.append(0)


def _leave(status: list[int]) -> None:
    if not status:
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # a caller may have closed it
                stream.flush()
    except (OSError, ValueError):
        return  # Python reports what it cannot write, with a status of its own
    os._exit(status[0])
